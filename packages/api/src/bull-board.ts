// Bull Board at /admin/queues: off unless BULL_BOARD_USER and BULL_BOARD_PASSWORD are set, and then for admins only.
// The guard and everything it guards are one router, mounted once: no path leads to a page, an asset or the board's own
// API without passing the guard. The board's own routes are only read; what changes something is board-actions.ts, and
// only with BULL_BOARD_WRITE.
import { createHash, timingSafeEqual } from 'node:crypto'
import { createBullBoard } from '@bull-board/api'
import { BullMQAdapter } from '@bull-board/api/bullMQAdapter'
import { ExpressAdapter } from '@bull-board/express'
import { deliveryDataSchema } from '@offshoot/shared/contracts/delivery'
import type { Runtime } from '@offshoot/shared/runtime'
import { type Request, type RequestHandler, Router } from 'express'
import { z } from 'zod'
import { bearerToken, findCaller, unauthorized } from './auth.ts'
import { boardActions } from './board-actions.ts'
import { lanesOf } from './lanes.ts'
import { pagePolicy } from './page-policy.ts'
import { answerWithProblem, factsOf, noSuchRoute, problem, type ProblemError } from './problem.ts'

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
  router.use(onlyAdmins(runtime, { user, password }), neverStored)
  if (runtime.config.BULL_BOARD_WRITE) router.use(onlyFromThisSite, boardActions(runtime, operatorOf))
  router.use(
    onlyReading(runtime.config.BULL_BOARD_WRITE),
    boardPolicy,
    withoutOutsideFonts,
    board.getRouter(),
    noSuchRoute,
    answerWithProblem(runtime.logger, shownByTheBoard),
  )
  return router
}

/** A lane's queue. What a delivery carries is shown in words. */
function laneAdapter({ config, deliveries }: Runtime, lane: string): BullMQAdapter {
  const adapter = new BullMQAdapter(deliveries.lane(lane), {
    readOnlyMode: !config.BULL_BOARD_WRITE,
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
    if (basic !== undefined && isSame(basic.user, login.user) && isSame(basic.password, login.password)) {
      operators.set(request, `operator:${login.user}`)
      return next()
    }
    const key = bearerToken(request.get('authorization')) ?? basic?.password
    const caller = key === undefined ? undefined : await findCaller(runtime, key, request.get('x-on-behalf-of'))
    if (caller === undefined)
      throw unauthorized(
        'Basic',
        'Sign in with the login of BULL_BOARD_USER, or with the API key of an admin as the password.',
      )
    if (!caller.admin) throw problem('not_authorized', 'Only admins may see the queues.')
    operators.set(request, caller.userId)
    next()
  }
}

/** Who acts, as a job's history names them: an admin's user id, or the login of the configuration. */
const operators = new WeakMap<Request, string>()

function operatorOf(request: Request): string {
  const operator = operators.get(request)
  if (operator === undefined) throw new Error(`${request.originalUrl} has no operator: put onlyAdmins() before it.`)
  return operator
}

const neverStored: RequestHandler = (_request, response, next) => {
  response.set('cache-control', 'no-store')
  next()
}

const isReading = ({ method }: Request) => method === 'GET' || method === 'HEAD'

/** A browser sends a login along with whatever another site makes it ask, and says which site that is. */
const onlyFromThisSite: RequestHandler = (request, _response, next) => {
  const site = request.get('sec-fetch-site')
  const origin = request.get('origin')
  const same =
    site === undefined ? origin === undefined || hostOf(origin) === request.get('host') : site === 'same-origin'
  if (isReading(request) || same) return next()
  throw problem('other_site', 'Act on the board itself, or with a client that is no browser.')
}

function hostOf(origin: string): string | undefined {
  return URL.canParse(origin) ? new URL(origin).host : undefined
}

const onlyReading =
  (withActions: boolean): RequestHandler =>
  (request, _response, next) => {
    if (isReading(request)) return next()
    if (withActions)
      throw problem(
        'action_off',
        'Jobs live in Postgres, and this would change the queue alone. Retry, clean, pause and resume work.',
      )
    throw problem('read_only', 'The board shows the queues and changes nothing.', { headers: { allow: 'GET, HEAD' } })
  }

/** The board's page shows what it finds under these two names. */
function shownByTheBoard({ code, message }: ProblemError): Record<string, unknown> {
  return { error: factsOf(code).title, message }
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
