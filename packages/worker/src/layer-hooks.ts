// Calls a hook of a context layer. It is the product's code: it may throw, hang or answer anything, and the job goes on.
import { z } from 'zod'
import { withoutSecrets } from '@offshoot/shared/contracts/secrets'
import { headOf } from '@offshoot/shared/contracts/text'
import { truncateText } from '@offshoot/shared/contracts/truncated-result'
import { assertStateSize } from '@offshoot/shared/db/layer-states'
import { encodeStored } from '@offshoot/shared/db/stored-value'
import {
  type ContextLayer,
  HOOK_ANSWERS,
  HOOK_TIMEOUTS_MS,
  type LayerHook,
  type LayerItem,
  type ReturnAnswer,
  type SpawnAnswer,
  type UpdateAnswer,
} from '@offshoot/shared/layers'
import { untilAborted } from './pause.ts'
import type { StopSwitch } from './run-stop.ts'

/** What a job's history says of a hook that failed. */
export type LayerFailure = { layerId: string; hook: LayerHook; error: string }

export type HookOutcome<Answer> = { answer: Answer } | { failure: LayerFailure } | { stopped: true }

interface Answers {
  onSpawn: SpawnAnswer | null
  onReturn: ReturnAnswer | null | undefined
  onParentUpdate: UpdateAnswer | null | undefined
}
type CallOf<Hook extends LayerHook> = Omit<Parameters<NonNullable<ContextLayer[Hook]>>[0], 'signal'>

const MAX_ERROR_LENGTH = 2_000

/** Calls a hook that the layer defines, for as long as it may take and the run goes on. It never throws. */
export async function callHook<Hook extends LayerHook>(
  layer: ContextLayer,
  hook: Hook,
  call: CallOf<Hook>,
  stopSwitch: StopSwitch,
): Promise<HookOutcome<Answers[Hook]>> {
  const limitMs = layer.timeoutsMs?.[hook] ?? HOOK_TIMEOUTS_MS[hook]
  const late = new AbortController()
  const timer = setTimeout(() => late.abort(new Error(`${hook} took longer than ${limitMs} ms`)), limitMs)
  const signal = AbortSignal.any([late.signal, stopSwitch.signal])
  try {
    // The layer's own function, called with what its type says.
    const run = layer[hook] as (call: unknown) => unknown
    const answer: unknown = await untilAborted(
      Promise.resolve().then(() => run.call(layer, { ...call, signal })),
      signal,
    )
    const parsed = HOOK_ANSWERS[hook].safeParse(answer)
    if (!parsed.success) throw new Error(`${hook} gave an answer of another shape: ${z.prettifyError(parsed.error)}`)
    // The schema checked it.
    const checked = parsed.data as Answers[Hook]
    for (const state of statesOf(checked)) assertStateSize(layer.id, state)
    return { answer: checked }
  } catch (error) {
    if (stopSwitch.signal.aborted) return { stopped: true }
    return { failure: failureOf(layer.id, hook, error) }
  } finally {
    clearTimeout(timer)
  }
}

export function failureOf(layerId: string, hook: LayerHook, error: unknown): LayerFailure {
  const message = error instanceof Error ? error.message : String(error)
  return { layerId, hook, error: headOf(withoutSecrets(message), MAX_ERROR_LENGTH) }
}

function statesOf(answer: Answers[LayerHook]): unknown[] {
  if (answer === null || answer === undefined) return []
  return [
    ...('childState' in answer ? [answer.childState] : []),
    ...('parentState' in answer ? [answer.parentState] : []),
  ]
}

/** The inbox rows of a hook's items. `at` tells the calls of one layer apart, so that a repeat adds nothing. */
export function inboxRows(jobId: string, layerId: string, at: string, items: readonly LayerItem[] | undefined) {
  return (items ?? []).map(({ text }, index) => ({
    jobId,
    key: `layer:${jobId}:${layerId}:${at}:${index}`,
    kind: 'layer' as const,
    parts: encodeStored([{ type: 'text', text: `[context layer ${layerId}]\n${truncateText(text)}` }]),
  }))
}
