// /api/inngest: where Inngest calls the functions of the config module (`inngestFunctions`), through Inngest's own
// handler. The address is there while Inngest is configured; without INNGEST_DEV every call must be signed.
import type { Runtime } from '@offshoot/shared/runtime'
import { json, Router } from 'express'
import { Inngest } from 'inngest'
import { serve } from 'inngest/express'

export const INNGEST_PATH = '/api/inngest'
/** A call brings the results of the function's earlier steps along, up to this size. */
const BODY_LIMIT = '4mb'

export function inngestRoutes({ config, extensions, logger }: Runtime): Router | undefined {
  if (!config.INNGEST_DEV && config.INNGEST_SIGNING_KEY === undefined) return undefined
  const client = new Inngest({
    id: 'offshoot',
    isDev: config.INNGEST_DEV,
    logger,
    ...(config.INNGEST_EVENT_KEY === undefined ? {} : { eventKey: config.INNGEST_EVENT_KEY }),
    ...(config.INNGEST_SIGNING_KEY === undefined ? {} : { signingKey: config.INNGEST_SIGNING_KEY }),
    ...(config.INNGEST_BASE_URL === undefined ? {} : { baseUrl: config.INNGEST_BASE_URL }),
  })
  const router = Router()
  router.use(
    json({ limit: BODY_LIMIT }),
    // By default the SDK lets anybody have the app registered anew, under the Host that the caller names.
    serve({ client, functions: [...extensions.inngestFunctions], enableUnauthedSync: false }),
  )
  return router
}
