// What a program does with sub-agents, one function each. docs/guide explains them: spawning.md, checking.md, aborting.md.
import type { Offshoot } from '@offshoot/shared'
import type { SpawnContext } from '@offshoot/shared/spawn-context'

const researcher = { botGroup: 'forge', botHandle: 'researcher' }

export async function waitForAnswer(offshoot: Offshoot, caller: SpawnContext, question: string) {
  const outcome = await offshoot.run(caller, { bot: researcher, message: question, timeoutSeconds: 120 })
  if (outcome.state !== 'completed') throw new Error(`The researcher failed: ${JSON.stringify(outcome)}`)
  return outcome.result
}

export async function lookLater(offshoot: Offshoot, caller: SpawnContext, question: string) {
  const { id } = await offshoot.spawn(caller, { bot: researcher, message: question, mode: 'async' })
  // … other work; the id may also be stored, and looked up by another process after a restart.
  const job = await offshoot.check(caller.userId, { jobId: id, waitSeconds: 60 })
  return job.state === 'completed' ? job.result : job.progress
}

export async function lookIn(offshoot: Offshoot, userId: string, jobId: string) {
  const job = await offshoot.check(userId, { jobId, includePartial: true })
  const { step, maxSteps, currentTool, lastText } = job.progress ?? {}
  return { state: job.state, step, maxSteps, currentTool, lastText, messages: job.messages }
}

export async function changeYourMind(offshoot: Offshoot, caller: SpawnContext, question: string) {
  const handle = await offshoot.spawn(caller, { bot: researcher, message: question, mode: 'async' })
  const { state, partialResult } = await handle.abort('not needed')
  return { state, partialResult }
}

export async function stopWaiting(offshoot: Offshoot, caller: SpawnContext, question: string) {
  const twoSeconds = AbortSignal.timeout(2_000)
  return offshoot.run(caller, { bot: researcher, message: question }, { signal: twoSeconds })
}

export async function takeWhatIsThere(
  offshoot: Offshoot,
  caller: SpawnContext,
  question: string,
  timeoutSeconds: number,
) {
  const outcome = await offshoot.run(caller, { bot: researcher, message: question, timeoutSeconds })
  const { state, reason } = outcome
  return { state, reason, answer: 'result' in outcome ? outcome.result : outcome.error }
}

/** In a tool of the parent job `caller` is what `getSpawnContext()` gives. */
export async function startWhatStays(offshoot: Offshoot, caller: SpawnContext, question: string) {
  return offshoot.spawn(caller, { bot: researcher, message: question, mode: 'async', onParentEnd: 'continue' })
}

export async function runItDifferently(offshoot: Offshoot, caller: SpawnContext, question: string) {
  return offshoot.run(caller, {
    bot: researcher,
    message: question,
    overrides: {
      modelOverride: 'openai:gpt-5',
      systemPromptAppend: 'Answer in one sentence.',
      reasoningEffort: 'low',
      maxSteps: 3,
      toolFilter: ['checkAgent'],
    },
  })
}

export async function startOnce(offshoot: Offshoot, caller: SpawnContext, orderId: string) {
  return offshoot.spawn(
    caller,
    { bot: researcher, message: `Look into order ${orderId}.`, mode: 'async' },
    { idempotencyKey: `order-${orderId}` },
  )
}
