// checkAgent polled: an answer that the model has read already comes back short, with when to look again. What it has read
// stands in the messages of the call, so this holds in a host, in a worker, and after a crash.
import type { ModelMessage, Tool } from 'ai'
import { canonicalJson } from '../contracts/canonical-json.ts'
import type { CheckInput, CheckOutput } from '../contracts/check.ts'
import { isTerminal } from '../contracts/job-state.ts'

type CheckTool = Tool<CheckInput, CheckOutput>

/** 10 s, then 20 and 40, then a minute. */
const FIRST_LOOK_SECONDS = 10
const LAST_LOOK_SECONDS = 60

/** The tool, whose answer is short where it says what its last one about that job said. */
export function shortWhenUnchanged(tool: CheckTool): CheckTool {
  const { execute, toModelOutput } = tool
  if (execute === undefined || toModelOutput === undefined) return tool
  return {
    ...tool,
    async execute(input, options) {
      // checkAgent answers once; it does not stream.
      const output = (await execute(input, options)) as CheckOutput
      const answer = await toModelOutput({ toolCallId: options.toolCallId, input, output })
      if (answer.type !== 'json') return output
      const read = answersAbout(input.jobId, options.messages)
      const last = read.findLastIndex((value) => !isShort(value))
      if (last === -1 || canonicalJson(read[last]) !== canonicalJson(answer.value)) return output
      if (isTerminal(output.state)) return { ...output, unchanged: true }
      const shortOnes = read.length - 1 - last
      const lookAgainSeconds = Math.min(FIRST_LOOK_SECONDS * 2 ** shortOnes, LAST_LOOK_SECONDS)
      return { ...output, unchanged: true, lookAgainSeconds }
    },
    toModelOutput: (call) => (call.output.unchanged === true ? shortAnswer(call.output) : toModelOutput(call)),
  }
}

function shortAnswer({ state, lookAgainSeconds }: CheckOutput) {
  const note =
    lookAgainSeconds === undefined
      ? 'The job had ended when you last looked; there is nothing new.'
      : `Nothing has changed since you last looked. Look again in ${lookAgainSeconds} s, or give waitSeconds to wait for the end.`
  const value = { state, unchanged: true, ...(lookAgainSeconds === undefined ? {} : { lookAgainSeconds }), note }
  return { type: 'json' as const, value }
}

function isShort(value: unknown): boolean {
  return typeof value === 'object' && value !== null && 'unchanged' in value
}

/** What the model has read of a job, oldest first. Endpoints use the ids of calls again: a result belongs to the call before it. */
function answersAbout(jobId: string, messages: readonly ModelMessage[]): unknown[] {
  const answers: unknown[] = []
  let asked = new Set<string>()
  for (const message of messages) {
    if (message.role === 'assistant') asked = callsAbout(jobId, message.content)
    if (message.role !== 'tool') continue
    for (const part of message.content) {
      if (part.type === 'tool-result' && part.output.type === 'json' && asked.has(part.toolCallId))
        answers.push(part.output.value)
    }
  }
  return answers
}

function callsAbout(jobId: string, content: Extract<ModelMessage, { role: 'assistant' }>['content']): Set<string> {
  const ids = new Set<string>()
  if (typeof content === 'string') return ids
  for (const part of content) {
    if (part.type !== 'tool-call' || part.toolName !== 'checkAgent') continue
    const { input } = part
    if (typeof input === 'object' && input !== null && 'jobId' in input && input.jobId === jobId)
      ids.add(part.toolCallId)
  }
  return ids
}
