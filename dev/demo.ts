// The main job, shown: a planner's turn spawns sub-agents in both modes, one of which spawns another; it checks them,
// aborts one, and answers. The tree is printed live.
import { program } from 'commander'
import { createLogUpdate } from 'log-update'
import { z } from 'zod'
import { agentTreeSchema, type AgentTreeView } from '@offshoot/shared/contracts/agent-job'
import { DEMO_REQUEST } from './demo-script.ts'
import { drawTree } from './draw-tree.ts'
import { logLine } from './log-line.ts'
import { startStack, type Stack } from './stack.ts'
import { onStopRequest } from './stop-request.ts'

program
  .name('pnpm demo')
  .description('Shows the main job: a planner with sub-agents, live. OPENAI_API_KEY lets them run on OpenAI.')
  .parse()

const LOOK_EVERY_MS = 250
/** Longer than any run of a real model that goes well. */
const DEMO_LIMIT_MS = 300_000

const stopping = new AbortController()
let stack: Stack | undefined
onStopRequest(
  () => {
    logLine('stopping …')
    stopping.abort()
  },
  () => {
    stack?.kill()
    process.exit(1)
  },
)

try {
  stack = await startStack({ workers: 2, log: logLine, signal: stopping.signal, quiet: true, drainMs: 500 })
  const passed = await runDemo(stack)
  await stack.stop()
  process.exit(passed ? 0 : 1)
} catch (error) {
  await stack?.stop()
  if (stopping.signal.aborted) process.exit(130)
  logLine(error instanceof Error ? error.message : String(error))
  process.exit(1)
}

async function runDemo({ apiUrl, apiKeys }: Stack): Promise<boolean> {
  const call = (path: string, body?: object) =>
    fetch(new URL(path, apiUrl), {
      method: body === undefined ? 'GET' : 'POST',
      headers: { authorization: `Bearer ${apiKeys.alice}`, 'content-type': 'application/json' },
      signal: AbortSignal.any([stopping.signal, AbortSignal.timeout(DEMO_LIMIT_MS)]),
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })

  process.stdout.write(`\nalice asks forge/planner:\n  ${DEMO_REQUEST}\n\n`)
  const { convoId } = z
    .object({ convoId: z.string() })
    .parse(await answerOf(await call('/v1/convos', { bot: { botGroup: 'forge', botHandle: 'planner' } })))
  const message = { id: 'demo-1', role: 'user', parts: [{ type: 'text', text: DEMO_REQUEST }] }
  const turn = await call(`/v1/convos/${convoId}/messages`, { messages: [message] })
  const jobId = turn.headers.get('x-agent-job-id')
  if (!turn.ok || jobId === null) throw new Error(`The API refused the message: ${turn.status} ${await turn.text()}`)
  // The turn's own stream is what a chat shows; the demo shows the tree instead, and the stream runs along.
  void turn.body?.cancel()

  const tree = await watchTree(async () =>
    agentTreeSchema.parse(await answerOf(await call(`/v1/agents/${jobId}/tree`))),
  )
  const { result } = z
    .object({ result: z.string().optional() })
    .parse(await answerOf(await call(`/v1/agents/${jobId}`)))
  return report({ tree, result, apiUrl, jobId, adminKey: apiKeys.admin })
}

/** Prints the tree as it changes, in place on a terminal, until all its jobs have ended. */
async function watchTree(read: () => Promise<AgentTreeView>): Promise<AgentTreeView> {
  const logUpdate = createLogUpdate(process.stdout)
  let shown = ''
  for (;;) {
    const tree = await read()
    const drawn = drawTree(tree.jobs, Date.now())
    if (process.stdout.isTTY) logUpdate(drawn)
    else {
      const states = tree.jobs.map((job) => `${job.jobId} ${job.state} ${job.steps}`).join()
      if (states !== shown) process.stdout.write(`${drawn}\n\n`)
      shown = states
    }
    if (tree.jobs.every((job) => job.finishedAt !== undefined)) {
      logUpdate.done()
      return tree
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS))
    stopping.signal.throwIfAborted()
  }
}

type Outcome = { tree: AgentTreeView; result: string | undefined; apiUrl: string; jobId: string; adminKey: string }

function report({ tree, result, apiUrl, jobId, adminKey }: Outcome): boolean {
  const count = (state: string) => tree.jobs.filter((job) => job.state === state).length
  const [completed, aborted, failed] = [count('completed'), count('aborted'), count('failed')]
  const passed = result !== undefined && failed === 0 && tree.jobs.length > 1
  process.stdout.write(
    [
      '',
      'forge/planner answers:',
      ...(result ?? '(nothing)').split('\n').map((line) => `  ${line}`),
      '',
      `API         ${new URL(`/v1/agents/${jobId}/tree`, apiUrl).href} (header: Authorization: Bearer <key>)`,
      `Bull Board  ${new URL('/admin/queues', apiUrl).href} (user admin, password ${adminKey})`,
      'Both ended with this demo; "npx -y pnpm@12.21.0 start" keeps them up.',
      '',
      `demo: ${passed ? 'ok' : 'failed'}, ${tree.jobs.length} jobs: ${completed} completed, ${aborted} aborted, ${failed} failed`,
      '',
    ].join('\n'),
  )
  return passed
}

async function answerOf(response: Response): Promise<unknown> {
  if (!response.ok) throw new Error(`${response.url} answered ${response.status}: ${await response.text()}`)
  return response.json()
}
