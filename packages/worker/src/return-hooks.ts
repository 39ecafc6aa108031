// The `onReturn` hooks of a job that completes: in the order of its layers, each on the result of the one before. They run
// outside any transaction; what they give is written in the one that ends the job, or not at all.
import type { LayerWrite } from '@offshoot/shared/db/layer-states'
import { readLayerState } from '@offshoot/shared/db/layer-states'
import type { ContextLayer, LayerVersionError } from '@offshoot/shared/layers'
import { callHook, failureOf, type LayerFailure } from './layer-hooks.ts'
import { MAX_RERUNS } from './layer-session.ts'
import type { Attempt } from './run-agent.ts'

export interface Returned {
  result: string
  writes: LayerWrite[]
  failures: LayerFailure[]
}

export interface ReturnHooks {
  /** Runs the hooks that have not run; those before the last conflict keep what they gave. */
  run(): Promise<Returned>
  /** A parent's state was written since its hook read it: that hook, and those behind it, run again. */
  conflict(error: LayerVersionError): void
}

interface Stage {
  /** The result after this layer. */
  result: string
  write?: LayerWrite
  failure?: LayerFailure
}

export function returnHooks(attempt: Attempt, result: string): ReturnHooks {
  const layers = attempt.layers.layers.filter((layer) => layer.onReturn !== undefined)
  const stages: Stage[] = []
  const conflicts = new Map<string, number>()

  return {
    async run() {
      for (const layer of layers.slice(stages.length))
        stages.push(await runStage(attempt, layer, stages.at(-1)?.result ?? result))
      return {
        result: stages.at(-1)?.result ?? result,
        writes: stages.flatMap(({ write }) => write ?? []),
        failures: stages.flatMap(({ failure }) => failure ?? []),
      }
    },
    conflict(error) {
      const at = layers.findIndex(({ id }) => id === error.layerId)
      const count = (conflicts.get(error.layerId) ?? 0) + 1
      conflicts.set(error.layerId, count)
      stages.length = at
      if (count > MAX_RERUNS)
        stages.push({ result: stages.at(-1)?.result ?? result, failure: failureOf(error.layerId, 'onReturn', error) })
    },
  }
}

async function runStage(attempt: Attempt, layer: ContextLayer, result: string): Promise<Stage> {
  const { runtime, job, stopSwitch, layers } = attempt
  const { database } = runtime
  const parent = layers.parent === undefined ? null : await readLayerState(database, layers.parent, layer.id)
  const child = await readLayerState(database, { jobId: job.id }, layer.id)
  const call = { parentState: parent?.state ?? null, childState: child?.state ?? null, result }
  const outcome = await callHook(layer, 'onReturn', call, stopSwitch)
  // A job that is stopped now has done its work: it completes with what there is.
  if ('stopped' in outcome)
    return { result, failure: failureOf(layer.id, 'onReturn', new Error('the run was stopped')) }
  if ('failure' in outcome) return { result, failure: outcome.failure }
  const { answer } = outcome
  const stage: Stage = { result: answer?.result ?? result }
  if (layers.parent === undefined || answer?.parentState === undefined) return stage
  const write: LayerWrite = {
    scope: layers.parent,
    layerId: layer.id,
    state: answer.parentState,
    expected: parent?.version ?? 0,
    ownerId: job.triggeredById,
  }
  return { ...stage, write }
}
