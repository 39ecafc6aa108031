// A delivery reaches this worker: claim its job, or acknowledge and stop. Then run it and write what came out.
import { deliveryDataSchema } from '@offshoot/shared/contracts/delivery'
import { REASONS, reasonSchema } from '@offshoot/shared/contracts/reason'
import {
  type Claim,
  type ClaimedJob,
  type Ending,
  isForNewerWorkers,
  type ReleasedClaim,
} from '@offshoot/shared/db/agent-jobs'
import { isTransientDatabaseError } from '@offshoot/shared/db/database-errors'
import { rightsStand } from '@offshoot/shared/db/users'
import { newId } from '@offshoot/shared/ids'
import { LayerVersionError } from '@offshoot/shared/layers'
import { finishAgent, stayBeforeReturn } from '@offshoot/shared/operations/finish-agent'
import { handBack } from '@offshoot/shared/operations/hand-back'
import { describeWithdrawn } from '@offshoot/shared/operations/prepare-spawn'
import { type RetryWait, waitForRetry } from '@offshoot/shared/operations/wait-for-retry'
import type { DeliveryOutcome } from '@offshoot/shared/metrics'
import type { Runtime } from '@offshoot/shared/runtime'
import { endWithOthers, storeLastStep } from './common-end.ts'
import { createCutCalls } from './cut-calls.ts'
import { keepLateResult } from './late-result.ts'
import { createLayerSession } from './layer-session.ts'
import type { LayerWatch } from './layer-watch.ts'
import type { LiveWriters } from './live-writer.ts'
import { createMcpSession } from './mcp-tools.ts'
import { pause } from './pause.ts'
import { type Attempt, runAgent } from './run-agent.ts'
import type { EndedOutcome, RunOutcome } from './run-outcome.ts'
import { type Returned, returnHooks } from './return-hooks.ts'
import { createStopSwitch } from './run-stop.ts'
import type { RunningJobs } from './running-jobs.ts'
import type { Suspects } from './suspects.ts'

export interface DeliveryDependencies {
  runtime: Runtime
  workerId: () => string
  runningJobs: RunningJobs
  suspects: Suspects
  layerWatch: LayerWatch
  liveWriters: LiveWriters
  isDraining(): boolean
  /** Aborted when the process must end now: claims that cannot be written are given up. */
  shutdown: AbortSignal
}

/** What came of a delivery, and that in a few words for Bull Board. */
export interface DeliveryResult {
  outcome: DeliveryOutcome
  words: string
  /** The delivery is not over: it is to be brought again after so many milliseconds. */
  againAfterMs?: number
}

const RETRY_PAUSE_MS = 500
/** How long a worker that may count as lost waits between two looks. */
const SEEN_PAUSE_MS = 50
/** How long a delivery for newer workers stays away from the queue, so that those who cannot take it do not spin on it. */
const NEWER_WORKER_PAUSE_MS = 2_000
/** How often an outcome is written that Postgres refuses with an error that is not known to pass. */
const OUTCOME_TRIES = 3
/** How long a suspect waits before it asks for its turn again. */
const TURN_PAUSE_MS = 1_000

/** A result of outcome `failed` means that the job itself failed. */
export async function processDelivery(dependencies: DeliveryDependencies, data: unknown): Promise<DeliveryResult> {
  const result = await claimAndRun(dependencies, data)
  dependencies.runtime.metrics.countDelivery(result.outcome)
  return result
}

async function claimAndRun(dependencies: DeliveryDependencies, data: unknown): Promise<DeliveryResult> {
  const { agentJobId, deliverySeq } = deliveryDataSchema.parse(data)
  const claim: Claim = { jobId: agentJobId, token: newId() }
  await untilSeen(dependencies)
  const job = await persistently(dependencies, () =>
    dependencies.runtime.groups.claim({ ...claim, deliverySeq, workerId: dependencies.workerId() }),
  )
  if (job === null) return notClaimed(dependencies, agentJobId, deliverySeq)
  if (job.generation === 1 && job.attempt === 1 && job.startedAt !== null) {
    const queuedMs = job.startedAt.getTime() - job.createdAt.getTime()
    dependencies.runtime.metrics.countFirstClaim(Math.max(0, queuedMs) / 1_000)
  }
  if (dependencies.suspects.mayRun(job)) return runClaimed(dependencies, job, claim)
  const wait = { forMs: TURN_PAUSE_MS, because: 'other jobs that workers were lost with run first', counted: false }
  return persistently(dependencies, () => waitOrHandBack(dependencies.runtime, job, claim, wait))
}

/** A worker that was frozen, and is told of its jobs' fate by the next heartbeat, takes nothing before that. */
async function untilSeen({ runningJobs, shutdown }: DeliveryDependencies): Promise<void> {
  while (!runningJobs.isSeen()) {
    runningJobs.lookSoon()
    await pause(SEEN_PAUSE_MS, shutdown)
  }
}

async function notClaimed(
  dependencies: DeliveryDependencies,
  jobId: string,
  deliverySeq: number,
): Promise<DeliveryResult> {
  const { database, logger } = dependencies.runtime
  if (!(await persistently(dependencies, () => isForNewerWorkers(database, jobId, deliverySeq))))
    return { outcome: 'not_due', words: 'not due any more' }
  logger.warn({ jobId }, 'the job was stored in a newer format than this worker reads; its delivery goes back')
  return { outcome: 'not_due', words: 'left to a newer worker', againAfterMs: NEWER_WORKER_PAUSE_MS }
}

async function runClaimed(dependencies: DeliveryDependencies, job: ClaimedJob, claim: Claim): Promise<DeliveryResult> {
  const { runtime, runningJobs, suspects, layerWatch, liveWriters } = dependencies
  const stopSwitch = createStopSwitch()
  const forget = runningJobs.add(claim, stopSwitch)
  const deadline = setTimeout(
    () => stopSwitch.stop({ kind: 'deadline' }),
    Math.min(Math.max(job.msLeft, 0), 2_147_483_647),
  )
  const claimedAt = performance.now()
  const live = liveWriters.open({
    jobId: job.id,
    generation: job.generation,
    attempt: job.attempt,
    onFenced: () => runningJobs.lookSoon(),
  })
  const mcp = createMcpSession({
    config: runtime.config,
    logger: runtime.logger.child({ jobId: job.id }),
    signal: stopSwitch.signal,
  })
  const layers = createLayerSession({ runtime, job, claim, stopSwitch })
  const unwatch = layerWatch.add(layers)
  const attempt: Attempt = {
    runtime,
    job,
    claim,
    live,
    mcp,
    layers,
    stopSwitch,
    cutCalls: createCutCalls(),
    entry: 'again',
    onStepStored: () => suspects.clear(claim.token),
    isDraining: () => dependencies.isDraining(),
    msLeft: () => Math.max(1, job.msLeft - (performance.now() - claimedAt)),
  }
  try {
    const granted = await persistently(dependencies, () => rightsStand(runtime.database, job))
    for (let entry: Attempt['entry'] = job.attempt === 1 && job.steps === 0 ? 'fresh' : 'resumed'; ; entry = 'again') {
      const outcome = granted ? await run({ ...attempt, entry }) : withdrawnGrant(job)
      const result = await writeSomehow(dependencies, attempt, outcome)
      if (result !== 'unread-inbox') return result
    }
  } finally {
    clearTimeout(deadline)
    live.end()
    unwatch()
    suspects.clear(claim.token)
    forget()
    await mcp.close()
  }
}

/** An error here is a bug of ours: the job fails with it instead of hanging. */
async function run(attempt: Attempt): Promise<RunOutcome> {
  try {
    return await runAgent(attempt)
  } catch (error) {
    const stopped = attempt.stopSwitch.reason()
    if (stopped?.kind === 'claim-lost') return { kind: 'lost', because: stopped.because, result: null }
    if (isTransientDatabaseError(error)) {
      attempt.runtime.logger.warn(
        { jobId: attempt.job.id, error },
        'Postgres was away during the run; the job goes back to the queue',
      )
      return { kind: 'handed-back' }
    }
    attempt.runtime.logger.error({ jobId: attempt.job.id, error }, 'the run ended with an unexpected error')
    return { kind: 'failed', ending: internalEnding(attempt.job, error), message: { cutText: '' } }
  }
}

function internalEnding(job: ClaimedJob, error: unknown): Ending {
  return {
    state: 'failed',
    reason: 'internal',
    result: null,
    error: REASONS.internal.sentence,
    errorDetail: error,
    partial: job.steps > 0,
  }
}

/**
 * What a run has come to is not thrown away for a write that fails once. An outcome that Postgres will never take is a
 * bug of ours, too: the job fails with it instead of staying open.
 */
async function writeSomehow(
  dependencies: DeliveryDependencies,
  attempt: Attempt,
  outcome: RunOutcome,
  triesLeft = OUTCOME_TRIES,
): Promise<DeliveryResult | 'unread-inbox'> {
  try {
    return await persistently(dependencies, () => writeOutcome(dependencies, attempt, outcome))
  } catch (error) {
    if (dependencies.shutdown.aborted) throw error
    const { runtime, job } = attempt
    const about = { jobId: job.id, outcome: outcome.kind, error, triesLeft: triesLeft - 1 }
    runtime.logger.error(about, 'the outcome of a run could not be written')
    if (triesLeft > 1) {
      await pause(RETRY_PAUSE_MS, dependencies.shutdown)
      return writeSomehow(dependencies, attempt, outcome, triesLeft - 1)
    }
    const end = { guard: released(attempt), ending: internalEnding(job, error), message: { parts: [] } }
    const row = await persistently(dependencies, () => finishAgent(runtime, job, end))
    return row === null ? LATE : { outcome: 'failed', words: 'failed: internal' }
  }
}

/** Writes an outcome. `unread-inbox`: the job may not end yet, messages for it have come meanwhile. */
async function writeOutcome(
  { runtime }: DeliveryDependencies,
  attempt: Attempt,
  outcome: RunOutcome,
): Promise<DeliveryResult | 'unread-inbox'> {
  if (outcome.kind === 'completed') {
    const ended = await endWithOthers(attempt, outcome)
    if (ended !== null) return completedIn(ended.steps)
  }
  await attempt.live.flush()
  switch (outcome.kind) {
    case 'completed': {
      const stored = await storeLastStep(attempt, outcome)
      return stored.kind === 'aborted' ? writeAbort(attempt, stored) : writeReturn(attempt, stored)
    }
    case 'failed':
      return writeEnd(attempt, outcome)
    case 'aborted':
      return writeAbort(attempt, outcome)
    case 'waiting':
      return {
        outcome: 'waiting',
        words: `waiting on ${outcome.liveChildren} ${outcome.liveChildren === 1 ? 'child' : 'children'}`,
      }
    case 'retry-later': {
      const wait = { forMs: outcome.afterMs, because: outcome.reason, counted: outcome.counted }
      return waitOrHandBack(runtime, attempt.job, released(attempt), wait)
    }
    case 'handed-back':
      return giveBack(attempt, null)
    case 'lost':
      runtime.logger.warn({ jobId: attempt.job.id, because: outcome.because }, 'an attempt lost its claim')
      // A claim that is still ours after all (Postgres was away, the process shuts down) must not be left behind.
      return giveBack(attempt, outcome.result)
  }
}

/** Hands the job back, if it is still ours. */
async function giveBack(attempt: Attempt, result: string | null): Promise<DeliveryResult> {
  if (await handBack(attempt.runtime, attempt.job, released(attempt), 'handed-back')) return HANDED_BACK
  await keepLateResult(attempt, { outcome: 'cut', result })
  return LOST
}

async function waitOrHandBack(
  runtime: Runtime,
  job: ClaimedJob,
  claim: Claim & ReleasedClaim,
  wait: RetryWait,
): Promise<DeliveryResult> {
  if (await waitForRetry(runtime, job, claim, wait))
    return { outcome: 'retry_later', words: `waiting ${Math.ceil(wait.forMs / 1_000)} s to try again: ${wait.because}` }
  // Somebody wants the job's end, or it is not ours any more.
  const handedBack = await handBack(runtime, job, claim, 'handed-back')
  return handedBack ? HANDED_BACK : LATE
}

/** The attempt's claim as it is given up, with what its cut calls have cost. */
function released({ claim, cutCalls }: Attempt): Claim & ReleasedClaim {
  return { ...claim, cutTokens: cutCalls.tokens() }
}

const HANDED_BACK: DeliveryResult = { outcome: 'handed_back', words: 'handed back' }
/** The attempt was stopped for it, or learned of it only with its own end. */
const LOST: DeliveryResult = { outcome: 'lost', words: 'lost to another worker' }
const LATE: DeliveryResult = { ...LOST, outcome: 'late' }

/** A job completes: its layers' hooks first, where it has some, while it takes no update of its parent's state. */
async function writeReturn(attempt: Attempt, outcome: EndedOutcome): Promise<DeliveryResult | 'unread-inbox'> {
  const { runtime, job, layers } = attempt
  const { result } = outcome.ending
  if (layers.layers.length === 0 || result === null) return writeEnd(attempt, outcome)
  await layers.pause()
  const stay = await stayBeforeReturn(runtime, job, {
    guard: released(attempt),
    parkTimeoutMs: parkTimeoutOf(attempt),
  })
  if (stay === 'parked') return PARKED
  const hooks = returnHooks(attempt, result)
  let written: DeliveryResult | 'unread-inbox' | undefined = stay
  while (written === undefined) {
    const { result: changed, ...returned } = await hooks.run()
    try {
      written = await writeEnd(attempt, { ...outcome, ending: { ...outcome.ending, result: changed } }, returned)
    } catch (error) {
      if (!(error instanceof LayerVersionError)) throw error
      hooks.conflict(error)
    }
  }
  if (written === 'unread-inbox') layers.resume()
  return written
}

const PARKED: DeliveryResult = { outcome: 'waiting', words: 'waiting on its inbox' }

function parkTimeoutOf({ runtime, job }: Attempt): number {
  return job.parkTimeoutMs ?? runtime.config.PARK_TIMEOUT_MS
}

async function writeEnd(
  attempt: Attempt,
  { kind, ending, message }: EndedOutcome,
  returned?: Pick<Returned, 'writes' | 'failures'>,
): Promise<DeliveryResult | 'unread-inbox'> {
  const { runtime, job } = attempt
  const row = await finishAgent(runtime, job, {
    guard: released(attempt),
    ending,
    message,
    ...(returned === undefined ? {} : { returned }),
    parkTimeoutMs: kind === 'completed' ? parkTimeoutOf(attempt) : null,
  })
  if (row === 'unread-inbox') return row
  if (row === 'parked') return PARKED
  if (row === null) {
    await keepLateResult(attempt, { outcome: kind, reason: ending.reason, result: ending.result })
    return LATE
  }
  return kind === 'completed' ? completedIn(row.steps) : { outcome: 'failed', words: `failed: ${ending.reason}` }
}

function completedIn(steps: number): DeliveryResult {
  return { outcome: 'completed', words: `completed, ${steps} steps` }
}

/** Who wanted the end, and why, stands in the row. */
async function writeAbort(attempt: Attempt, { ending, message }: EndedOutcome): Promise<DeliveryResult> {
  const { runtime, job } = attempt
  const wish = await runtime.database.agentJob.findUnique({
    where: { id: job.id },
    select: { abortReason: true, abortText: true, abortRequestedBy: true },
  })
  const by = wish?.abortRequestedBy ?? undefined
  const reason = reasonSchema.catch(ending.reason).parse(wish?.abortReason)
  const row = await finishAgent(runtime, job, {
    guard: released(attempt),
    ending: { ...ending, reason, error: wish?.abortText ?? REASONS[reason].sentence },
    message,
    ...(by === undefined ? {} : { actorId: by }),
  })
  if (row !== null) return { outcome: 'aborted', words: `aborted by ${by ?? 'Offshoot'}` }
  await keepLateResult(attempt, { outcome: 'aborted', reason, result: ending.result })
  return LATE
}

function withdrawnGrant(job: ClaimedJob): RunOutcome {
  const error = describeWithdrawn(job.ownerId)
  return {
    kind: 'failed',
    ending: { state: 'failed', reason: 'not_authorized', result: null, error, partial: job.steps > 0 },
    message: { cutText: '' },
  }
}

/** Tries again for as long as Postgres is away: nothing that was accepted or finished is given up for that. */
async function persistently<T>({ runtime, shutdown }: DeliveryDependencies, work: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await work()
    } catch (error) {
      if (!isTransientDatabaseError(error)) throw error
      runtime.logger.warn({ error }, 'Postgres is away; trying again')
      await pause(RETRY_PAUSE_MS, shutdown)
    }
  }
}
