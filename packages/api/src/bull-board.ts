// Bull Board at /admin/queues: off unless BULL_BOARD_USER and BULL_BOARD_PASSWORD are set, and then for admins only.
// The guard and everything it guards are one router, mounted once: no path leads to a page, an asset or the board's own
// API without passing the guard. Only reading is let through.
import { createHash, timingSafeEqual } from 'node:crypto'
import { createBullBoard } from '@bull-board/api'
import { BullMQAdapter } from '@bull-board/api/bullMQAdapter'
import { ExpressAdapter } from '@bull-board/express'
import { deliveryDataSchema } from '@offshoot/shared/contracts/delivery'
import type { Runtime } from '@offshoot/shared/runtime'
import { type Request, type RequestHandler, Router } from 'express'
import { z } from 'zod'
import { bearerToken, findCaller, unauthorized } from './auth.ts'
import { lanesOf } from './lanes.ts'
import { pagePolicy } from './page-policy.ts'
import { noSuchRoute, problem } from './problem.ts'

export const BULL_BOARD_PATH = '/admin/queues'

/** The board behind its login, or undefined when no login is configured. */
export function bullBoard(runtime: Runtime): Router | undefined {
  const { BULL_BOARD_USER: user, BULL_BOARD_PASSWORD: password } = runtime.config
  if (user === undefined || password === undefined) return undefined
  const board = new ExpressAdapter()
  board.setBasePath(BULL_BOARD_PATH)
  createBullBoard({
    serverAdapter: board,
    queues: lanesOf(runtime.config).map((lane) => laneAdapter(runtime, lane)),
    options: { uiConfig: { boardTitle: 'Offshoot', hideDocsLink: true } },
  })
  const router = Router()
  router.use(
    onlyAdmins(runtime, { user, password }),
    onlyReading,
    boardPolicy,
    withoutOutsideFonts,
    board.getRouter(),
    noSuchRoute,
  )
  return router
}

/** A lane's queue. What a delivery carries is shown in words. */
function laneAdapter({ deliveries }: Runtime, lane: string): BullMQAdapter {
  const adapter = new BullMQAdapter(deliveries.lane(lane), {
    readOnlyMode: true,
    displayName: lane,
    description: `deliveries of the lane "${lane}"`,
  })
  adapter.setFormatter('name', describeDelivery)
  return adapter
}

const labelledSchema = z.object({ name: z.string(), data: deliveryDataSchema })

/** The bot, and the labels by which people find a job. */
function describeDelivery(delivery: unknown): string {
  const labelled = labelledSchema.safeParse(delivery)
  if (!labelled.success) return ''
  const { name, data } = labelled.data
  return [
    name,
    `job ${data.agentJobId}`,
    `owner ${data.owner}`,
    ...(data.parent === null ? [] : [`parent ${data.parent}`]),
    `depth ${data.depth}`,
  ].join(' · ')
}

/** The login of the configuration by HTTP Basic, or an admin's API key, as Bearer or as the Basic password. */
function onlyAdmins(runtime: Runtime, login: { user: string; password: string }): RequestHandler {
  return async (request, _response, next) => {
    const basic = readBasic(request)
    if (basic !== undefined && isSame(basic.user, login.user) && isSame(basic.password, login.password)) return next()
    const key = bearerToken(request.get('authorization')) ?? basic?.password
    const caller = key === undefined ? undefined : await findCaller(runtime, key, request.get('x-on-behalf-of'))
    if (caller === undefined)
      throw unauthorized(
        'Basic',
        'Sign in with the login of BULL_BOARD_USER, or with the API key of an admin as the password.',
      )
    if (!caller.admin) throw problem('not_authorized', 'Only admins may see the queues.')
    next()
  }
}

const onlyReading: RequestHandler = (request, response, next) => {
  if (request.method !== 'GET' && request.method !== 'HEAD')
    throw problem('read_only', 'The board shows the queues and changes nothing.', { headers: { allow: 'GET, HEAD' } })
  response.set('cache-control', 'no-store')
  next()
}

/** The board's page asks Google for two typefaces; it has others to fall back on. */
const withoutOutsideFonts: RequestHandler = (_request, response, next) => {
  const send = response.send.bind(response)
  response.send = (body: unknown) =>
    send(typeof body === 'string' ? body.replaceAll(/<link href="https:\/\/fonts[^>]*>/g, '') : body)
  next()
}

/** The board's page names its own base and has a typeface of its own; its scripts are all files. */
const boardPolicy = pagePolicy({ fontSrc: ["'self'"], baseUri: ["'self'"] })

function readBasic(request: Request): { user: string; password: string } | undefined {
  const encoded = /^Basic +(\S+) *$/i.exec(request.get('authorization') ?? '')?.[1]
  if (encoded === undefined) return undefined
  const decoded = Buffer.from(encoded, 'base64').toString('utf8')
  const colon = decoded.indexOf(':')
  return colon === -1 ? undefined : { user: decoded.slice(0, colon), password: decoded.slice(colon + 1) }
}

/** Compares in constant time, whatever the lengths. */
function isSame(given: string, expected: string): boolean {
  return timingSafeEqual(digestOf(given), digestOf(expected))
}

function digestOf(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}
