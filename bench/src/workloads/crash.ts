// Two workers run agents that stand at step 2 of 4, in a model call that is not answered; one of them is killed, and the
// model answers from then on. The baseline is BullMQ with a lock as short as Offshoot's: with its own 30 s everything but
// the calls would take that much longer.
import { type Fleet, startFleet } from '@offshoot/testing/fleet'
import { waitUntil } from '@offshoot/testing/wait-until'
import { type BenchStage, type BullmqRunner, inLanes, LOCK_MS, openBenchStage, SPAWN_LANES } from '../bench-stage.ts'
import type { Chart } from '../chart.ts'
import type { JournalEntry } from '../model-server.ts'
import { type AgentPlan, planOf, readPlan, sharedNow } from '../plan.ts'
import type { Workload } from '../workload.ts'

const AGENTS = 50
const STEPS = 4
/** The second one. */
const HELD_STEP = 1
const WITHIN_MS = 120_000

/** Whoever runs the agents on two processes. */
interface Contestant {
  start(plans: readonly AgentPlan[]): Promise<void>
  /** The names of those that the process to be killed holds. */
  victims(): Promise<string[]>
  kill(): Promise<void>
  untilAllDone(): Promise<void>
}

export const crash: Workload = {
  name: 'crash',
  about: `one of two workers is killed while ${AGENTS} agents stand at step ${HELD_STEP + 1} of ${STEPS}`,
  warmUps: 0,
  async open() {
    const stage = await openBenchStage()
    const fleet = await startFleet(stage, 2).catch(async (error: unknown) => {
      await stage.close()
      throw error
    })
    return {
      async round() {
        await fleet.replenish()
        const ofOffshoot = await killOne(stage, offshootOn(stage, fleet))
        const ofBullmq = await killOne(stage, await bullmqOn(stage))
        return {
          ...ofOffshoot,
          bullmqAllDoneMs: ofBullmq.allDoneMs,
          bullmqRecoveryStartsMs: ofBullmq.recoveryStartsMs,
          bullmqCallsRepeatedBeyondThoseInFlight: ofBullmq.callsRepeatedBeyondThoseInFlight,
        }
      },
      charts: CHARTS,
      async close() {
        await fleet.stop()
        await stage.close()
      },
    }
  },
}

const CHARTS: readonly Chart[] = [
  {
    kind: 'bars',
    title: 'From the kill',
    unit: 'ms',
    bars: [
      { label: 'Offshoot: first goes on', figure: 'recoveryStartsMs' },
      { label: 'Offshoot: all have gone on', figure: 'allGoOnMs' },
      { label: 'Offshoot: all done', figure: 'allDoneMs' },
      { label: `raw BullMQ, lock of ${LOCK_MS / 1_000} s: first goes on`, figure: 'bullmqRecoveryStartsMs' },
      { label: `raw BullMQ, lock of ${LOCK_MS / 1_000} s: all done`, figure: 'bullmqAllDoneMs' },
    ],
  },
  {
    kind: 'bars',
    title: 'Model calls repeated, beyond those in flight',
    unit: 'calls',
    bars: [
      { label: 'Offshoot', figure: 'callsRepeatedBeyondThoseInFlight' },
      { label: 'raw BullMQ', figure: 'bullmqCallsRepeatedBeyondThoseInFlight' },
    ],
  },
]

async function killOne({ model }: BenchStage, { start, victims, kill, untilAllDone }: Contestant) {
  await model.forget()
  const plans = Array.from({ length: AGENTS }, (_, at) => planOf(`agent ${at}`, { steps: STEPS, heldStep: HELD_STEP }))
  await start(plans)
  const allHeld = async () => (await model.journal()).filter(({ step }) => step === HELD_STEP).length === AGENTS
  await waitUntil(allHeld, { within: WITHIN_MS, what: 'the second step of all agents' })
  const names = new Set(await victims())
  if (names.size === 0) throw new Error('the worker to be killed holds no agent')
  const killedAt = sharedNow()
  await kill()
  await model.release(plans.map(({ name }) => name))
  await untilAllDone()
  const allDoneMs = sharedNow() - killedAt
  const journal = await model.journal()
  const wentOnMs = [...names].map((name) => firstCallAfter(journal, name, killedAt) - killedAt)
  return {
    allDoneMs,
    recoveryStartsMs: Math.min(...wentOnMs),
    allGoOnMs: Math.max(...wentOnMs),
    agentsOfKilledWorker: names.size,
    callsRepeatedBeyondThoseInFlight: countRepeated(journal, killedAt),
  }
}

function firstCallAfter(journal: readonly JournalEntry[], agent: string, after: number): number {
  return journal.find(({ name, at }) => name === agent && at > after)?.at ?? NaN
}

/** Calls that were made again although they had been answered whole before the kill. */
function countRepeated(journal: readonly JournalEntry[], killedAt: number): number {
  const bySteps = Map.groupBy(journal, ({ name, step }) => `${name}, step ${step}`).values()
  return [...bySteps].reduce((sum, [first, ...again]) => {
    const wasAnswered = (first?.endedAt ?? Infinity) < killedAt
    return sum + (wasAnswered ? again.length : 0)
  }, 0)
}

function offshootOn(stage: BenchStage, fleet: Fleet): Contestant {
  const { database } = stage.runtime
  const [victim] = fleet.processes()
  if (victim === undefined) throw new Error('no worker runs')
  return {
    async start(plans) {
      await inLanes(plans, SPAWN_LANES, async (plan, at) => {
        await stage.spawn(at, plan)
      })
    },
    async victims() {
      const { id: workerId } = await database.worker.findFirstOrThrow({ where: { pid: victim.pid } })
      const jobs = await database.agentJob.findMany({ where: { workerId, state: 'running' } })
      return jobs.map(({ inputMessage }) => readPlan(inputMessage).name)
    },
    async kill() {
      victim.kill('SIGKILL')
      await victim.exited
    },
    untilAllDone: stage.untilAllCompleted,
  }
}

async function bullmqOn(stage: BenchStage): Promise<Contestant> {
  const startOne = () => stage.startBullmq(AGENTS, { lockMs: LOCK_MS })
  const [victim, survivor] = [await startOne(), await startOne()]
  return {
    start: (plans) => addAll(victim, plans),
    async victims() {
      const active = await victim.queue.getActive()
      const held = active.filter(({ processedBy }) => processedBy === String(victim.process.pid))
      return held.map(({ data }: { data: { message: string } }) => readPlan(data.message).name)
    },
    async kill() {
      victim.process.kill('SIGKILL')
      await victim.process.exited
    },
    async untilAllDone() {
      const done = async () => (await victim.queue.getJobCountByTypes('waiting', 'active', 'prioritized')) === 0
      await waitUntil(done, { within: WITHIN_MS, what: 'the end of all jobs' })
      const failed = await victim.queue.getFailedCount()
      if (failed > 0) throw new Error(`${failed} jobs of BullMQ failed`)
      await survivor.process.stop()
    },
  }
}

async function addAll({ queue }: BullmqRunner, plans: readonly AgentPlan[]): Promise<void> {
  await queue.addBulk(plans.map((plan) => ({ name: 'agent', data: { message: JSON.stringify(plan) } })))
}
