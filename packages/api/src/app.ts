// The Express app: who may come in, what each address does, and what every answer carries.
import type { Runtime } from '@offshoot/shared/runtime'
import express, { type Express, Router } from 'express'
import helmet from 'helmet'
import { authenticate } from './auth.ts'
import { BULL_BOARD_PATH, bullBoard } from './bull-board.ts'
import { docsRoutes } from './docs.ts'
import { INNGEST_PATH, inngestRoutes } from './inngest.ts'
import type { OpenRequests } from './open-requests.ts'
import { answerWithProblem, noSuchRoute } from './problem.ts'
import { readJsonBodies } from './read-request.ts'
import { logRequests } from './request-log.ts'
import { agentRoutes } from './routes/agents.ts'
import { botRoutes } from './routes/bots.ts'
import { convoRoutes } from './routes/convos.ts'
import { deadLetterRoutes } from './routes/dead-letters.ts'
import { healthRoutes } from './routes/health.ts'
import { layerRoutes } from './routes/layers.ts'
import { resultRoutes } from './routes/results.ts'
import { metricsRoutes } from './routes/metrics.ts'

export interface AppOptions {
  openRequests: OpenRequests
  /** True once the process is about to end: it counts as not ready. */
  isStopping?: () => boolean
}

export function createApp(runtime: Runtime, { openRequests, isStopping = () => false }: AppOptions): Express {
  const app = express()
  app.set('etag', false)
  app.use(logRequests(runtime.logger), safeHeaders)
  app.use(healthRoutes(runtime, isStopping), metricsRoutes(runtime))
  app.use(docsRoutes())
  const board = bullBoard(runtime)
  if (board !== undefined) app.use(BULL_BOARD_PATH, board)
  const inngest = inngestRoutes(runtime)
  if (inngest !== undefined) app.use(INNGEST_PATH, inngest)
  app.use('/v1', v1(runtime, openRequests))
  app.use(noSuchRoute, answerWithProblem(runtime.logger))
  return app
}

/** Everything that belongs to a caller. A body is read only after the key was found good. */
function v1(runtime: Runtime, openRequests: OpenRequests): Router {
  const router = Router()
  router.use(authenticate(runtime), readJsonBodies)
  router.use((_request, response, next) => {
    response.set('cache-control', 'no-store')
    next()
  })
  router.use('/agents', agentRoutes(runtime, openRequests), resultRoutes(runtime), layerRoutes(runtime))
  router.use('/convos', convoRoutes(runtime, openRequests))
  router.use('/bots', botRoutes(runtime))
  router.use('/dead-letters', deadLetterRoutes(runtime))
  return router
}

/** nosniff and its relatives on every answer, and a policy that lets a page load nothing. Pages that need more say so themselves. */
const safeHeaders = helmet({
  contentSecurityPolicy: {
    useDefaults: false,
    directives: { defaultSrc: ["'none'"], baseUri: ["'none'"], formAction: ["'none'"], frameAncestors: ["'none'"] },
  },
  referrerPolicy: { policy: 'no-referrer' },
  xFrameOptions: { action: 'deny' },
  // TLS ends in front of this process; whether a whole domain is HTTPS for good is not its to say.
  strictTransportSecurity: false,
})
