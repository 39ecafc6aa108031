import type { RequestHandler } from 'express'
import { contentSecurityPolicy } from 'helmet'

/** The policy of a page that loads only what this server has. `more` names what a page needs beyond that. */
export function pagePolicy(more: Record<string, string[]> = {}): RequestHandler {
  return contentSecurityPolicy({
    useDefaults: false,
    directives: {
      defaultSrc: ["'none'"],
      scriptSrc: ["'self'"],
      // Both pages set style attributes of their own.
      styleSrc: ["'self'", "'unsafe-inline'"],
      imgSrc: ["'self'", 'data:'],
      connectSrc: ["'self'"],
      baseUri: ["'none'"],
      formAction: ["'none'"],
      frameAncestors: ["'none'"],
      ...more,
    },
  })
}
