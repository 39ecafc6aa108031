import type { AgentTreeView } from '@offshoot/shared/contracts/agent-job'

type Job = AgentTreeView['jobs'][number]

const SIGNS: Record<Job['state'], string> = { pending: '·', running: '▸', completed: '✓', failed: '✗', aborted: '■' }

/** The jobs of a tree as lines: who, state, steps, tokens and time of each, children below their parents. */
export function drawTree(jobs: readonly Job[], nowMs: number): string {
  const [root] = jobs
  if (root === undefined) return ''
  const lines: [label: string, job: Job][] = []
  const add = (job: Job, lead: string, branch: string) => {
    lines.push([`${lead}${branch}${job.bot}`, job])
    const children = jobs.filter((each) => each.parentJobId === job.jobId)
    const childLead = lead + (branch === '' ? '' : branch === '└─ ' ? '   ' : '│  ')
    for (const [at, child] of children.entries()) add(child, childLead, at === children.length - 1 ? '└─ ' : '├─ ')
  }
  add(root, '', '')
  const width = Math.max(...lines.map(([label]) => label.length))
  return lines.map(([label, job]) => `${label.padEnd(width)}  ${describe(job, nowMs)}`).join('\n')
}

function describe(job: Job, nowMs: number): string {
  const state = job.waitingOn === undefined ? job.state : `waits on ${job.waitingOn}`
  const endMs = job.finishedAt === undefined ? nowMs : Date.parse(job.finishedAt)
  const seconds = Math.max(0, endMs - Date.parse(job.createdAt)) / 1_000
  const tokens = job.usage.totalTokens === null ? '-' : String(job.usage.totalTokens)
  return `${SIGNS[job.state]} ${`${job.mode}, ${state}`.padEnd(25)} step ${String(job.steps).padStart(2)}  ${tokens.padStart(6)} tokens  ${seconds.toFixed(1).padStart(5)} s`
}
