// The mock model, in a process of its own, so that what it costs is nobody else's. It speaks OpenAI's Responses protocol as
// fast as it can. What it answers stands in the last user message (plan.ts). GET /journal tells of each call; POST /release
// takes names of agents whose held step is to be answered; /forget empties both.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text as readText } from 'node:stream/consumers'
import { type AgentPlan, readPlan, sharedNow } from './plan.ts'

export interface JournalEntry {
  /** `name` of the plan. */
  name: string
  step: number
  /** Instants of `sharedNow`. */
  at: number
  firstTokenAt?: number
  /** The whole answer was sent. */
  endedAt?: number
  /** The other side closed the connection before that. */
  cutAt?: number
}

let journal: JournalEntry[] = []
const released = new Set<string>()
/** Calls that wait for their agent's release, by its name. */
const held = new Map<string, (() => void)[]>()
/** Tokens of all answers under way, sent by one timer: 2,000 streams at once must not cost 2,000 timers. */
const streams = new Set<{ nextAt: number; everyMs: number; send: () => void }>()
setInterval(() => {
  const at = performance.now()
  for (const stream of streams) {
    while (stream.nextAt <= at && streams.has(stream)) {
      stream.nextAt += stream.everyMs
      stream.send()
    }
  }
}, 5).unref()

const server = createServer((request, response) => {
  route(request, response).catch(() => response.destroy())
})
server.keepAliveTimeout = 120_000
server.listen(0, '127.0.0.1', 4_096, () => {
  // A server that listens on a port has an address with that port.
  const { port } = server.address() as AddressInfo
  process.send?.({ ready: true, url: `http://127.0.0.1:${port}` })
})

async function route(request: IncomingMessage, response: ServerResponse): Promise<void> {
  switch (request.url) {
    case '/journal':
      return void response.end(JSON.stringify(journal))
    case '/release':
      for (const name of JSON.parse(await readText(request)) as string[]) release(name)
      return void response.end()
    case '/forget':
      journal = []
      released.clear()
      held.clear()
      return void response.end()
    default:
      return answer(request, response)
  }
}

function release(name: string): void {
  released.add(name)
  for (const goOn of held.get(name) ?? []) goOn()
  held.delete(name)
}

async function untilReleased(name: string): Promise<void> {
  if (released.has(name)) return
  await new Promise<void>((resolve) => held.set(name, [...(held.get(name) ?? []), resolve]))
}

async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const body: { input: { type?: string; role?: string; content?: unknown }[] } = JSON.parse(await readText(request))
  const plan = readPlan(lastUserText(body.input))
  const step = countSteps(body.input)
  const entry: JournalEntry = { name: plan.name, step, at: sharedNow() }
  journal.push(entry)
  response.once('close', () => {
    if (entry.endedAt === undefined) entry.cutAt = sharedNow()
  })
  if (step === plan.heldStep) await untilReleased(plan.name)
  if (entry.cutAt !== undefined) return
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  const calls = callsOf(plan, step)
  const head = event({ type: 'response.created', response: CREATED })
  if (calls.length > 0) {
    response.end(head + calls.map(callEvents).join('') + COMPLETED)
    entry.endedAt = sharedNow()
    return
  }
  const opened = head + event({ type: 'response.output_item.added', output_index: 0, item: MESSAGE })
  if (plan.everyMs === 0) {
    entry.firstTokenAt = sharedNow()
    response.end(opened + TOKEN.repeat(plan.tokens) + MESSAGE_DONE + COMPLETED)
    entry.endedAt = sharedNow()
    return
  }
  response.write(opened)
  let left = plan.tokens
  const stream = {
    nextAt: performance.now() + plan.everyMs,
    everyMs: plan.everyMs,
    send() {
      entry.firstTokenAt ??= sharedNow()
      left -= 1
      const token = plan.stamped ? tokenOf(`${sharedNow().toFixed(3)} `) : TOKEN
      if (left > 0) return void response.write(token)
      streams.delete(stream)
      response.end(token + MESSAGE_DONE + COMPLETED)
      entry.endedAt = sharedNow()
    },
  }
  streams.add(stream)
  if (plan.firstAtOnce) stream.send()
  response.once('close', () => streams.delete(stream))
}

const event = (data: { type: string } & Record<string, unknown>) =>
  `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`
const CREATED = { id: 'resp_1', created_at: 1_764_500_000, model: 'mock', service_tier: null }
const MESSAGE = { type: 'message', id: 'msg_0' }
const tokenOf = (delta: string) => event({ type: 'response.output_text.delta', item_id: 'msg_0', delta })
const TOKEN = tokenOf('token ')
const MESSAGE_DONE = event({ type: 'response.output_item.done', output_index: 0, item: MESSAGE })
const COMPLETED = event({
  type: 'response.completed',
  response: { incomplete_details: null, usage: { input_tokens: 20, output_tokens: 20 } },
})

interface Call {
  name: string
  input: unknown
  id: string
}

function callsOf(plan: AgentPlan, step: number): Call[] {
  if (step === 0 && plan.children.length > 0)
    return plan.children.map((child, at) => ({
      name: 'spawnAgent',
      input: { bot: { botGroup: 'forge', botHandle: 'agent' }, message: JSON.stringify(child) },
      id: `call_${at}`,
    }))
  return step < plan.steps - 1 ? [{ name: 'work', input: { text: plan.name }, id: `call_${step}` }] : []
}

function callEvents({ name, input, id }: Call, at: number): string {
  const item = { type: 'function_call', id: `fc_${id}`, call_id: id, name }
  const args = JSON.stringify(input)
  return [
    event({ type: 'response.output_item.added', output_index: at, item: { ...item, arguments: '' } }),
    event({ type: 'response.function_call_arguments.delta', item_id: item.id, output_index: at, delta: args }),
    event({
      type: 'response.output_item.done',
      output_index: at,
      item: { ...item, arguments: args, status: 'completed' },
    }),
  ].join('')
}

/** Each step of a plan but the last one leaves results of its calls. */
function countSteps(input: readonly { type?: string; role?: string }[]): number {
  return input.filter((item, at) => item.type === 'function_call_output' && input[at + 1]?.type !== item.type).length
}

function lastUserText(input: readonly { role?: string; content?: unknown }[]): string {
  const content = input.findLast((item) => item.role === 'user')?.content
  if (typeof content === 'string') return content
  const parts: { text?: string }[] = Array.isArray(content) ? content : []
  return parts.map((part) => part.text ?? '').join('')
}
