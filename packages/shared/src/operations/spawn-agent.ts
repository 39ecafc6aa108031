// Spawning: the decision that needs the locks, and the rows. A spawn answers after its commit, so that a check that
// follows at once finds the job; the delivery goes out behind it.
import { botLabel } from '../contracts/bot.ts'
import {
  asyncNote,
  type AsyncSpawnOutput,
  type ProgramSpawnInput,
  type RefusedSpawnOutput,
} from '../contracts/spawn.ts'
import type { AgentJob } from '../db/agent-jobs.ts'
import { isUniqueViolation } from '../db/database-errors.ts'
import { type Queryable, sql } from '../db/database.ts'
import { eventsInsert, type NewEvent } from '../db/events.ts'
import { insertSpawns, type NewJob, type NewSpawn, spawnInserts } from '../db/new-jobs.ts'
import { type NewOutboxEntry, outboxInsert } from '../db/outbox.ts'
import { encodeStored, STORED_FORMAT, storedText } from '../db/stored-value.ts'
import { newId } from '../ids.ts'
import type { Runtime } from '../runtime.ts'
import { checkBudgets, refuseUnknownPrice, toMicroUsd, toTokens } from './budget.ts'
import { deliveryEntry, priorityOfNewJob, tellDelivery } from './deliver.ts'
import { type PreparedSpawn, prepareSpawn, refuse, type Refusal, type SpawnOrigin } from './prepare-spawn.ts'
import { recordRefusal } from './refusals.ts'
import { type LockedUser, lockTree, lockUser, transact, type TransactRuntime, type Tx, usersLock } from './transact.ts'

export type SpawnAnswer =
  | { kind: 'accepted'; job: AgentJob; /** True when the same request had been accepted before. */ repeated: boolean }
  | { kind: 'refused'; refusal: Refusal }
  /** The idempotency key was used for another request. */
  | { kind: 'conflict' }

/** Spawns from a host or over HTTP. A running job's spawns go through answer-spawn-calls.ts. */
export async function spawnAgent(
  runtime: Runtime,
  origin: SpawnOrigin,
  input: ProgramSpawnInput,
): Promise<SpawnAnswer> {
  const answer = await trySpawn(runtime, origin, input)
  if (answer.kind !== 'refused') return answer
  const { reason, error } = answer.refusal
  runtime.metrics.countRefusal(reason)
  const { parent, userId: actorId } = origin
  if (parent !== undefined)
    await recordRefusal(runtime, { jobId: parent.jobId, actorId, what: 'spawn', step: parent.step, reason, error })
  return answer
}

async function trySpawn(runtime: Runtime, origin: SpawnOrigin, input: ProgramSpawnInput): Promise<SpawnAnswer> {
  const prepared = await prepareSpawn(runtime, origin, input)
  if ('refused' in prepared) return { kind: 'refused', refusal: prepared }
  const repeated = await findByKey(runtime.database, prepared)
  if (repeated !== undefined) return repeated
  return origin.parent === undefined ? runtime.groups.spawn(prepared) : spawnAlone(runtime, prepared)
}

type SpawnRuntime = TransactRuntime & Pick<Runtime, 'config'>

/** One spawn in a transaction of its own. */
export async function spawnAlone(runtime: SpawnRuntime, prepared: PreparedSpawn): Promise<SpawnAnswer> {
  const { origin } = prepared
  try {
    return await transact(runtime, async (tx) => {
      const ended = await lockLiveParent(tx, origin)
      if (ended !== undefined) return { kind: 'refused', refusal: ended }
      const job = await insertSpawn(runtime, tx, prepared)
      if (!('refused' in job)) return { kind: 'accepted', job, repeated: false }
      // What fills the cap may be this very request, accepted without an answer, or while we waited for the lock.
      const accepted = (await findOwn(tx.db, prepared)) ?? (await findByKey(tx.db, prepared))
      return accepted ?? { kind: 'refused', refusal: job }
    })
  } catch (error) {
    if (!isUniqueViolation(error)) throw error
    // The first try was committed without an answer; or two requests with one key raced, and the other one was first.
    const first = (await findOwn(runtime.database, prepared)) ?? (await findByKey(runtime.database, prepared))
    if (first !== undefined) return first
    throw error
  }
}

/** A tool that spawns through the host client inside a running job: that job must still be live, and nobody want its end. */
async function lockLiveParent(tx: Tx, { parent }: SpawnOrigin): Promise<Refusal | undefined> {
  if (parent === undefined) return undefined
  await lockTree(tx, parent.rootJobId)
  const live = await tx.db.agentJob.count({
    where: { id: parent.jobId, state: { in: ['pending', 'running'] }, abortRequestedAt: null },
  })
  return live === 1
    ? undefined
    : refuse('invalid_request', `Job ${parent.jobId} has ended or is about to: it spawns nothing any more.`)
}

/** What an earlier try of this very spawn has made. */
async function findOwn(db: Queryable, { jobId }: PreparedSpawn): Promise<SpawnAnswer | undefined> {
  const job = await db.agentJob.findUnique({ where: { id: jobId } })
  return job === null ? undefined : { kind: 'accepted', job, repeated: false }
}

async function findByKey(db: Queryable, { origin, requestHash }: PreparedSpawn): Promise<SpawnAnswer | undefined> {
  if (origin.idempotencyKey === undefined) return undefined
  const job = await db.agentJob.findUnique({
    where: { triggeredById_idempotencyKey: { triggeredById: origin.userId, idempotencyKey: origin.idempotencyKey } },
  })
  if (job === null) return undefined
  return job.requestHash === requestHash ? { kind: 'accepted', job, repeated: true } : { kind: 'conflict' }
}

/**
 * Checks the caps and inserts the job with its convo and first message. A refusal has inserted nothing. A child's tree
 * is locked already by the caller; a new root brings its own, which nobody else can know yet.
 */
export async function insertSpawn(
  runtime: Pick<Runtime, 'config'>,
  tx: Tx,
  prepared: PreparedSpawn,
): Promise<AgentJob | Refusal> {
  const { origin } = prepared
  const treeCap = await checkTreeCaps(runtime, tx, origin)
  if (treeCap !== undefined) return treeCap
  const cap = await checkUserCap(runtime, tx, prepared.ownerId)
  if ('refused' in cap) return cap
  const above = await checkBudgetsAbove(tx, prepared)
  if ('refused' in above) return above
  const spawn = newSpawnOf({ prepared, activeJobs: cap.activeJobs, budgeted: above.budgeted })
  const [job] = await insertSpawns(tx.db, [spawn])
  if (job === undefined) throw new Error(`Job ${prepared.jobId} was not inserted.`)
  tellSpawned(tx, job)
  return job
}

interface AllowedSpawn {
  prepared: PreparedSpawn
  /** Unfinished jobs of its owner before it. */
  activeJobs: number
  /** A job above it has a budget. */
  budgeted: boolean
}

/**
 * Spawns of new roots, many in one transaction. `apart`: somebody holds the owner's row, the request may have been made
 * before, or it was not inserted. A cap counts those that come before it in the group.
 */
export async function spawnTogether(
  runtime: SpawnRuntime,
  group: readonly PreparedSpawn[],
): Promise<(SpawnAnswer | 'apart')[]> {
  const { database, metrics, outbox } = runtime
  let decided: (SpawnAnswer | 'apart' | AllowedSpawn)[] = []
  let events: NewEvent[] = []
  let entries: NewOutboxEntry[] = []
  const lock = usersLock(
    group.map(({ ownerId }) => ownerId),
    { onlyFree: true },
  )
  type Written = AgentJob & { outboxId: bigint }
  const { written } = await database.direct.lockThenWrite<LockedUser, Written>(lock, (users) => {
    decided = decideTogether(runtime, group, new Map(users.map((user) => [user.userId, user.activeJobs])))
    const spawns = decided.flatMap((each) => (each !== 'apart' && 'prepared' in each ? [newSpawnOf(each)] : []))
    if (spawns.length === 0) return undefined
    events = spawns.map(({ job }) => spawnedEvent(job))
    entries = spawns.map(({ job }) => deliveryEntry({ ...job, deliverySeq: 1 }, 'new'))
    return sql`
      with ${spawnInserts(spawns)}, history as (${eventsInsert(events)}), told as (${outboxInsert(entries)})
      select job.*, told."id" as "outboxId" from job join told on told."jobId" = job."id"`
  })
  const jobs = new Map(written.map((job) => [job.id, job]))
  metrics.countEvents(events.filter(({ jobId }) => jobs.has(jobId)))
  outbox.dispatch(
    entries.flatMap((entry) => {
      const id = jobs.get(entry.jobId)?.outboxId
      return id === undefined ? [] : [{ ...entry, id, attempts: 0 }]
    }),
  )
  return decided.map((each) => {
    if (each === 'apart' || !('prepared' in each)) return each
    const job = jobs.get(each.prepared.jobId)
    return job === undefined ? 'apart' : { kind: 'accepted', job, repeated: false }
  })
}

/** Which of a group are within their owners' caps, in their order. `activeJobs` by owner; it is counted on. */
function decideTogether(
  runtime: SpawnRuntime,
  group: readonly PreparedSpawn[],
  activeJobs: Map<string, number>,
): (SpawnAnswer | 'apart' | AllowedSpawn)[] {
  return group.map((prepared) => {
    const active = activeJobs.get(prepared.ownerId)
    // Somebody else holds the user, and nobody else shall wait for that.
    if (active === undefined) return 'apart'
    const cap = checkUserCount(runtime, prepared.ownerId, active)
    // What fills the cap may be this very request, accepted before.
    if (cap !== undefined)
      return prepared.origin.idempotencyKey === undefined ? { kind: 'refused', refusal: cap } : 'apart'
    const budget = checkPriceForBudget(prepared, false)
    if (budget !== undefined) return { kind: 'refused', refusal: budget }
    activeJobs.set(prepared.ownerId, active + 1)
    return { prepared, activeJobs: active, budgeted: false }
  })
}

/** Sets the deadline of a new turn by Postgres's clock, counts the job in its tree, and tells of its delivery. */
export async function startPending(tx: Tx, job: AgentJob): Promise<void> {
  await tx.db.$executeRaw(sql`
    update "offshoot"."AgentJob" set "journalFormat" = ${STORED_FORMAT},
      "deadlineAt" = clock_timestamp() + make_interval(secs => ${job.timeoutMs / 1000}) where "id" = ${job.id}`)
  await tx.db.agentTree.update({ where: { rootJobId: job.rootJobId }, data: { jobs: { increment: 1 } } })
  tellSpawned(tx, job)
}

function tellSpawned(tx: Tx, job: AgentJob): void {
  tx.record(spawnedEvent(job))
  tellDelivery(tx, job, 'new')
}

function spawnedEvent(
  job: Pick<AgentJob, 'id' | 'triggeredById' | 'botLabel' | 'ownerId' | 'grant' | 'mode'>,
): NewEvent {
  const { id: jobId, triggeredById: actorId, botLabel: bot, ownerId, grant, mode } = job
  return { jobId, kind: 'spawned', actorId, data: { bot, ownerId, grant, mode } }
}

async function checkTreeCaps(
  { config }: Pick<Runtime, 'config'>,
  tx: Tx,
  origin: SpawnOrigin,
): Promise<Refusal | undefined> {
  if (origin.parent === undefined) return undefined
  const tree = await tx.db.agentTree.findUnique({ where: { rootJobId: origin.parent.rootJobId } })
  if ((tree?.jobs ?? 0) >= config.MAX_JOBS_PER_TREE) {
    return refuse(
      'cap',
      `This tree has ${config.MAX_JOBS_PER_TREE} jobs, which is the limit. Finish with what you have.`,
    )
  }
  const children = await tx.db.agentJob.count({ where: { parentJobId: origin.parent.jobId } })
  if (children >= config.MAX_CHILDREN_PER_JOB) {
    return refuse(
      'cap',
      `You have spawned ${config.MAX_CHILDREN_PER_JOB} sub-agents, which is the limit. Finish with what you have.`,
    )
  }
  return undefined
}

async function checkBudgetsAbove(tx: Tx, prepared: PreparedSpawn): Promise<Refusal | { budgeted: boolean }> {
  const { input, origin } = prepared
  const asked = {
    maxTotalTokens: toTokens(input.budget?.maxTotalTokens),
    maxCostMicroUsd: toMicroUsd(input.budget?.maxCostUsd),
  }
  const { parent } = origin
  const above = parent === undefined ? { budgeted: false, inMoney: false } : await checkBudgets(tx, parent, asked)
  if ('refused' in above) return above
  return checkPriceForBudget(prepared, above.inMoney) ?? above
}

/** A budget in money, its own or one above it, needs the price of the model. */
function checkPriceForBudget({ input, price, model }: PreparedSpawn, inMoneyAbove: boolean): Refusal | undefined {
  if (price !== undefined || !(inMoneyAbove || toMicroUsd(input.budget?.maxCostUsd) !== null)) return undefined
  return refuseUnknownPrice(model)
}

/** Locks the user: the last lock. Answers how many unfinished jobs it has, or that these are as many as allowed. */
export async function checkUserCap(
  { config }: Pick<Runtime, 'config'>,
  tx: Tx,
  userId: string,
): Promise<{ activeJobs: number } | Refusal> {
  const activeJobs = await lockUser(tx, userId)
  return checkUserCount({ config }, userId, activeJobs) ?? { activeJobs }
}

function checkUserCount({ config }: Pick<Runtime, 'config'>, userId: string, activeJobs: number): Refusal | undefined {
  if (activeJobs < config.MAX_ACTIVE_JOBS_PER_USER) return undefined
  return refuse(
    'cap',
    `User ${userId} has ${activeJobs} unfinished jobs; ${config.MAX_ACTIVE_JOBS_PER_USER} are allowed. Wait until some have ended, or abort some.`,
  )
}

function newSpawnOf({ prepared, activeJobs, budgeted }: AllowedSpawn): NewSpawn {
  const { input, origin, ownerId, jobId: id } = prepared
  const job: NewJob = {
    ...whoFields(prepared),
    ...whatFields(prepared),
    id,
    rootJobId: origin.parent?.rootJobId ?? id,
    convoId: newId(),
    inputSeq: 1,
    budgeted: budgeted || input.budget !== undefined,
    priority: priorityOfNewJob(activeJobs, input.priority ?? 0),
  }
  return { job, spaceId: ownerId === origin.userId ? origin.spaceId : null }
}

function whoFields({ bot, input, origin, ownerId, grant }: PreparedSpawn) {
  const { parent } = origin
  return {
    botId: bot.id,
    botLabel: botLabel(bot),
    botRef: { ...input.bot },
    botSnapshot: encodeStored(bot),
    ownerId,
    triggeredById: origin.userId,
    triggeredByIds: [...new Set([origin.userId, ...(parent?.triggeredByIds ?? [])])],
    grant,
    delegateUserIds: [...origin.delegateUserIds],
    parentConvoId: origin.parentConvoId,
    parentJobId: parent?.jobId ?? null,
    parentStep: parent?.step ?? null,
    parentToolCallId: parent?.toolCallId ?? null,
    ancestorIds: parent === undefined ? [] : [parent.jobId, ...parent.ancestorIds],
    depth: origin.depth + 1,
    tags: input.tags ?? {},
    idempotencyKey: origin.idempotencyKey ?? null,
    traceparent: origin.traceparent ?? null,
  } satisfies Partial<NewJob>
}

function whatFields({
  input,
  toolNames,
  layers,
  maxSteps,
  runner,
  workerId,
  lane,
  timeoutMs,
  requestHash,
}: PreparedSpawn) {
  return {
    mode: input.mode,
    inputMessage: storedText(input.message),
    overrides: encodeStored(input.overrides ?? {}),
    toolNames,
    maxSteps,
    runner,
    workerId,
    lane,
    timeoutMs,
    requestHash,
    layers,
    steers: input.steers ?? 'queue',
    notifyParent: input.notifyParent ?? false,
    wakeIdleParent: input.wakeIdleParent ?? false,
    onParentEnd: input.onParentEnd ?? 'end',
    parkTimeoutMs: input.parkTimeoutMs ?? null,
    maxTotalTokens: toTokens(input.budget?.maxTotalTokens),
    maxCostMicroUsd: toMicroUsd(input.budget?.maxCostUsd),
    completionEventName: input.completionEvent?.name ?? null,
    completionEventData: input.completionEvent?.data === undefined ? null : encodeStored(input.completionEvent.data),
  } satisfies Partial<NewJob>
}

export function refusedOutput(input: { mode: 'sync' | 'async' }, refusal: Refusal): RefusedSpawnOutput {
  return { mode: input.mode, jobId: '', convoId: '', state: 'failed', reason: refusal.reason, error: refusal.error }
}

export function asyncOutput(job: AgentJob): AsyncSpawnOutput {
  return {
    mode: 'async',
    jobId: job.id,
    convoId: job.convoId,
    state: job.attempt > 0 ? 'running' : 'pending',
    note: asyncNote(job),
  }
}
