// Parents that wait for their sub-agents, with fewer slots than jobs: a job that waits must hold none of them. The baseline
// runs sub-agents inside the tool call, in one process, and knows no slots: it is what the model calls alone take.
import { type BareRunner, type BenchStage, openBenchStage } from '../bench-stage.ts'
import type { Chart } from '../chart.ts'
import { costOf } from '../meters.ts'
import { type AgentPlan, planOf } from '../plan.ts'
import type { Workload } from '../workload.ts'

const PARENTS = 8
const CHILDREN = 2
const SLOTS = 4
/** Children of the tree's root, and of each of them. */
const WIDTH = 5

export const nested: Workload = {
  name: 'nested',
  about: `${PARENTS} parents of ${CHILDREN} sync children on ${SLOTS} slots; a tree of 1-${WIDTH}-${WIDTH ** 2} on one slot`,
  warmUps: 1,
  async open() {
    const stage = await openBenchStage({ WORKER_CONCURRENCY: String(SLOTS) })
    await stage.startWorker()
    const one = await openBenchStage({ WORKER_CONCURRENCY: '1' }).catch(async (error: unknown) => {
      await stage.close()
      throw error
    })
    await one.startWorker()
    const bare = await stage.startBareRunner()
    return {
      async round() {
        const parents = await run(stage, bare, parentPlans())
        const tree = await run(one, bare, [treePlan()])
        return {
          parentsWallMs: parents.wallMs,
          bareParentsWallMs: parents.bareWallMs,
          parentsWallRatioToBare: parents.wallMs / parents.bareWallMs,
          treeWallMs: tree.wallMs,
          bareTreeWallMs: tree.bareWallMs,
          treeWallRatioToBare: tree.wallMs / tree.bareWallMs,
          modelCpuShare: parents.modelCpuShare,
        }
      },
      charts: CHARTS,
      async close() {
        await stage.close()
        await one.close()
      },
    }
  },
}

const CHARTS: readonly Chart[] = [
  {
    kind: 'bars',
    title: `${PARENTS} parents of ${CHILDREN} children, ${SLOTS} slots`,
    unit: 'ms',
    bars: [
      { label: 'Offshoot', figure: 'parentsWallMs' },
      { label: 'bare streamText', figure: 'bareParentsWallMs' },
    ],
  },
  {
    kind: 'bars',
    title: `A tree of 1-${WIDTH}-${WIDTH ** 2}, one slot`,
    unit: 'ms',
    bars: [
      { label: 'Offshoot', figure: 'treeWallMs' },
      { label: 'bare streamText', figure: 'bareTreeWallMs' },
    ],
  },
]

function childrenOf(name: string, count: number, children: (name: string) => AgentPlan[]): AgentPlan[] {
  return Array.from({ length: count }, (_, at) => {
    const child = `${name}.${at + 1}`
    return planOf(child, { children: children(child) })
  })
}

const none = () => []

function parentPlans(): AgentPlan[] {
  return childrenOf('parent', PARENTS, (parent) => childrenOf(parent, CHILDREN, none))
}

function treePlan(): AgentPlan {
  const children = childrenOf('tree', WIDTH, (middle) => childrenOf(middle, WIDTH, none))
  return planOf('tree', { children })
}

async function run(stage: BenchStage, bare: BareRunner, plans: readonly AgentPlan[]) {
  await stage.model.forget()
  const { wallMs, cpuMs } = await costOf({ model: stage.model.pid }, async () => {
    await Promise.all(plans.map((plan, at) => stage.spawn(at, plan)))
    await stage.untilAllCompleted()
  })
  const wanted = plans.reduce((sum, plan) => sum + countAgents(plan), 0)
  const ran = new Set((await stage.model.journal()).map(({ name }) => name)).size
  if (ran !== wanted) throw new Error(`${ran} of ${wanted} agents have called their model`)
  const { wallMs: bareWallMs } = await bare.run(plans, plans.length)
  return { wallMs, bareWallMs, modelCpuShare: cpuMs.model / wallMs }
}

function countAgents({ children }: AgentPlan): number {
  return children.reduce((sum, child) => sum + countAgents(child), 1)
}
