// One attempt of a job, from its claim to an outcome. Read top-down: load what is stored, then again and again ask the
// state what comes next: answer open calls, call the model for some steps, or end. Expected outcomes are values.
import { convertToModelMessages, type ModelMessage } from 'ai'
import type { Claim, ClaimedJob } from '@offshoot/shared/db/agent-jobs'
import { loadHistory } from '@offshoot/shared/db/convos'
import { insertEventsOfAttempt } from '@offshoot/shared/db/events'
import { type Counters, loadInbox, loadSteps, loadToolCalls } from '@offshoot/shared/db/journal'
import { runWithLayers } from '@offshoot/shared/layers'
import { layersOfRun } from '@offshoot/shared/operations/layer-state'
import type { Runtime } from '@offshoot/shared/runtime'
import { runWithSpawnContext } from '@offshoot/shared/spawn-context'
import { type Answered, answerOpenCalls } from './answer-open-calls.ts'
import { reserveForCall } from './call-budget.ts'
import type { CutCalls } from './cut-calls.ts'
import { createJournal, type Journal } from './journal.ts'
import type { LayerSession } from './layer-session.ts'
import type { LiveWriter } from './live-writer.ts'
import type { McpSession } from './mcp-tools.ts'
import { addMcpTools, type ResolvedAgent, resolveAgent } from './resolve-agent.ts'
import { stopWithoutRight } from './rights.ts'
import { type RunInbox, watchInbox } from './run-inbox.ts'
import { inboxMessage, runSegment, type WholeStep } from './run-segment.ts'
import { ended, endingOf, failedOutcome, type RunOutcome, stoppedOutcome, unresolvable } from './run-outcome.ts'
import { createRunState, type RunState } from './run-state.ts'
import { type RunStop, RunStopped, type StopSwitch } from './run-stop.ts'

export interface Attempt {
  runtime: Runtime
  job: ClaimedJob
  claim: Claim
  live: LiveWriter
  mcp: McpSession
  layers: LayerSession
  stopSwitch: StopSwitch
  cutCalls: CutCalls
  /**
   * `fresh`: nothing of the job is stored yet; `resumed`: an earlier attempt has stored something; `again`: this attempt
   * goes on.
   */
  entry: 'fresh' | 'resumed' | 'again'
  /** Called when the output of a step is stored. */
  onStepStored(): void
  isDraining(): boolean
  /** Milliseconds until the job's deadline, by a monotonic timer. */
  msLeft(): number
}

export async function runAgent(attempt: Attempt): Promise<RunOutcome> {
  const { runtime, job, claim, stopSwitch, live } = attempt
  const state = await loadState(attempt)
  announce(attempt, state)
  let agent: ResolvedAgent
  try {
    agent = resolveAgent(runtime, job)
  } catch (error) {
    return unresolvable(state, error)
  }
  const stoppedBefore = await openLayers(attempt)
  if (stoppedBefore !== undefined) return stoppedOutcome(attempt, state, stoppedBefore)
  let ready: ReadyForModel | RunOutcome | undefined
  const { journal, counters } = openJournal(attempt, agent)
  const inbox = watchInbox(attempt)
  // What comes later is looked at when the job is about to end, under the tree's lock (finish-agent.ts).
  let unread = await inbox.hasUnread()
  for (;;) {
    const stopped = stopSwitch.reason()
    if (stopped !== undefined) return stoppedOutcome(attempt, state, stopped)
    const move = state.next(unread)
    // Whoever goes on answers the calls, too: a spawn in a process that ends would end with it.
    if (move.kind !== 'end' && attempt.isDraining()) return { kind: 'handed-back' }
    switch (move.kind) {
      case 'end':
        return ended(state, endingOf(move.step, state))
      case 'answer-calls': {
        // Once the job waits its next attempt may write, and this one's frames are refused.
        await live.flush()
        const answered = await answerUnlessStopped(() => answerOpenCalls(attempt, state, journal, move, agent.tools))
        if (answered.kind === 'waiting') return answered
        if (answered.kind === 'stopped')
          return stoppedOutcome(attempt, state, stopSwitch.reason() ?? (await whyStopped(attempt)))
        break
      }
      case 'call-model': {
        ready ??= await prepareForModel(attempt, state, { resolved: agent, journal })
        if ('kind' in ready) return ready
        const messages: ModelMessage[] = [...ready.history, ...state.messages()]
        const segment = {
          config: runtime.config,
          agent: ready.agent,
          journal,
          live,
          stopSwitch,
          state,
          takeInbox: inbox.take,
          noteUnread: inbox.noteUnread,
          isDraining: () => attempt.isDraining(),
        }
        unread = false
        const end = await runWithSpawnContext(contextOf(job), () =>
          runWithLayers(layersOfRun(runtime, job, claim), () => runSegment(segment, messages)),
        )
        if (end.kind === 'failed') {
          if (journal.held() !== undefined) await live.flush()
          await journal.storeHeld()
          const why = stopSwitch.reason()
          return why === undefined ? failedOutcome(attempt, state, end.error) : stoppedOutcome(attempt, state, why)
        }
        const last = { journal, counters: counters(), last: end.unstored }
        const completed = await completeOrStore(attempt, state, inbox, last)
        if (completed !== undefined) return completed
      }
    }
  }
}

/** The journal, and the job's counters as its last stored output has left them. */
function openJournal(attempt: Attempt, { modelId, price }: ResolvedAgent) {
  const { runtime, job, claim, stopSwitch, live } = attempt
  let counters: Counters = job
  const journal = createJournal({
    database: runtime.database,
    groups: runtime.groups,
    mergeWindow: runtime.extensions.mergeWindow,
    claim,
    generation: job.generation,
    stopSwitch,
    cutCalls: attempt.cutCalls,
    limits: { firstChunkMs: runtime.config.MODEL_FIRST_CHUNK_MS, chunkMs: runtime.config.MODEL_CHUNK_MS },
    modelId,
    metrics: runtime.metrics,
    ...(price === undefined ? {} : { price }),
    beforeCall: (params) => reserveForCall(attempt, price, params),
    beforeTool: () => stopWithoutRight(attempt),
    logger: runtime.logger,
    beforeStore: () => live.flush(),
    onStored(stored) {
      counters = stored ?? counters
      attempt.onStepStored()
    },
  })
  return { journal, counters: () => counters }
}

/** After a segment: the job completes with its last step, or the step is stored as whole and the job goes on. */
async function completeOrStore(
  attempt: Attempt,
  state: RunState,
  inbox: RunInbox,
  { journal, counters, last }: { journal: Journal; counters: Counters; last: WholeStep | undefined },
): Promise<RunOutcome | undefined> {
  const { stopSwitch, live } = attempt
  if (last === undefined) return undefined
  const stopped = stopSwitch.reason()
  const move = state.next(false)
  if (move.kind === 'end' && (stopped === undefined || stopped.kind === 'drain')) {
    const ending = endingOf(move.step, state)
    const lastStep = { ...last, output: journal.held() }
    if (ending.state === 'completed') return { ...ended(state, ending), lastStep, counters }
  }
  try {
    await live.flush()
    inbox.noteUnread(await journal.storeWhole(last.index, last.messages, last.malformed))
    return undefined
  } catch (error) {
    const why = stopSwitch.reason()
    if (!(error instanceof RunStopped) || why === undefined) throw error
    if (!(await journal.storeHeld())) state.cutLast()
    return stoppedOutcome(attempt, state, why)
  }
}

/** A stop in between ends the journal's next write. */
async function answerUnlessStopped(answer: () => Promise<Answered>): Promise<Answered> {
  try {
    return await answer()
  } catch (error) {
    if (error instanceof RunStopped) return { kind: 'stopped' }
    throw error
  }
}

/** Before the first step; answers why the run was stopped meanwhile, if it was. */
async function openLayers({ layers, stopSwitch }: Attempt): Promise<RunStop | undefined> {
  try {
    await layers.open()
  } catch (error) {
    if (stopSwitch.reason() === undefined) throw error
  }
  return stopSwitch.reason()
}

/** What a model call needs and no other move does: the tools of MCP servers, and the convo's history in the model's form. */
interface ReadyForModel {
  agent: ResolvedAgent
  history: ModelMessage[]
}

async function prepareForModel(
  attempt: Attempt,
  state: RunState,
  { resolved, journal }: { resolved: ResolvedAgent; journal: Journal },
): Promise<ReadyForModel | RunOutcome> {
  const { runtime, job, claim, mcp, stopSwitch } = attempt
  let agent: ResolvedAgent
  try {
    const found = await mcp.open(resolved.grant)
    const events = found.problems.map((data) => ({ kind: 'mcp-server' as const, data }))
    await insertEventsOfAttempt(runtime.database, claim, events)
    agent = addMcpTools(resolved, found, state)
  } catch (error) {
    const stopped = stopSwitch.reason()
    return stopped === undefined ? unresolvable(state, error) : stoppedOutcome(attempt, state, stopped)
  }
  // A sub-agent begins with nothing but its message, which stands in its row.
  if (job.mode !== 'turn' && job.inputSeq === 1)
    return { agent, history: [{ role: 'user', content: [{ type: 'text', text: job.inputMessage }] }] }
  const stored = await loadHistory(runtime.database, job.convoId, job.inputSeq)
  try {
    // The journal's tools, which know what to make of a result that was truncated.
    const tools = journal.wrapTools(agent.tools)
    return { agent, history: await convertToModelMessages(stored, { tools, ignoreIncompleteToolCalls: true }) }
  } catch (error) {
    return failedOutcome(attempt, state, error)
  }
}

/**
 * The first frame of an attempt. A step that an earlier one had begun and not stored is made again: its frames go. Those
 * of a step that is played back stay, and only what its tools say follows. `fromStep` is the first step of which viewers
 * see all anew, so what they have seen of it and later ones does not count.
 */
function announce({ live, job, entry }: Attempt, state: RunState): void {
  if (entry === 'fresh') live.write({ type: 'start', messageId: job.id })
  if (entry !== 'resumed') return
  const playedBack = state.stepToPlayBack()
  if (playedBack === undefined) live.restartStep()
  const fromStep = playedBack === undefined ? state.nextIndex() : playedBack.index + 1
  const data = { generation: job.generation, attempt: job.attempt, fromStep }
  live.write({ type: 'data-attempt', transient: true, data })
}

async function loadState({ runtime: { database }, job, entry }: Attempt): Promise<RunState> {
  const [steps, toolCalls, inbox] =
    entry === 'fresh'
      ? [[], [], []]
      : await Promise.all([loadSteps(database, job.id), loadToolCalls(database, job.id), loadInbox(database, job.id)])
  return createRunState({ steps, toolCalls, inbox, maxSteps: job.maxSteps, inboxMessage })
}

/** The caller of every tool of this run is the job itself, as its owner. */
function contextOf(job: ClaimedJob) {
  return {
    userId: job.ownerId,
    parentConvoId: job.convoId,
    parentConvoOwnerId: job.ownerId,
    parentConvoSpaceId: null,
    delegateUserIds: job.delegateUserIds,
    spawnDepth: job.depth,
    parentJobId: job.id,
  }
}

/** The claim is gone or there is an abort wish: the row says which. */
async function whyStopped({ runtime, claim }: Attempt): Promise<RunStop> {
  const row = await runtime.database.agentJob.findUnique({
    where: { id: claim.jobId },
    select: { claimToken: true, state: true, abortRequestedAt: true },
  })
  if (row?.state === 'running' && row.claimToken === claim.token && row.abortRequestedAt !== null)
    return { kind: 'abort-wish' }
  return { kind: 'claim-lost', because: 'the claim was gone when calls were to be answered' }
}
