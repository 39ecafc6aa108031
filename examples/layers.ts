// A context layer: a briefing that goes down to every sub-agent, and findings that come back. docs/guide/layers.md explains it.
import type { Offshoot } from '@offshoot/shared'
import { defineConfig } from '@offshoot/shared/extensions'
import { defineLayer, getLayerState, setLayerState } from '@offshoot/shared/layers'
import type { SpawnContext } from '@offshoot/shared/spawn-context'
import { tool } from 'ai'
import { z } from 'zod'

const briefingSchema = z.object({ goal: z.string(), findings: z.array(z.string()) })
type Briefing = z.infer<typeof briefingSchema>

/** A state is JSON that anybody with the job may have written: read it like any input. */
function briefingOf(state: unknown): Briefing {
  return briefingSchema.catch({ goal: '', findings: [] }).parse(state)
}

export const briefing = defineLayer({
  id: 'briefing',
  onSpawn({ parentState }) {
    const { goal, findings } = briefingOf(parentState)
    if (goal === '') return null // nothing to say: the layer takes no part in this sub-agent
    return {
      childState: { goal, findings: [] },
      items: [{ text: `We work on: ${goal}\nKnown so far: ${findings.join('; ') || 'nothing'}` }],
    }
  },
  onReturn({ parentState, childState, result }) {
    const before = briefingOf(parentState)
    const found = briefingOf(childState).findings
    return {
      parentState: { ...before, findings: [...before.findings, ...found] },
      result: `${result} (${found.length} findings noted)`,
    }
  },
  onParentUpdate({ parentState }) {
    const latest = briefingOf(parentState).findings.at(-1)
    return latest === undefined ? null : { items: [{ text: `Somebody found: ${latest}` }] }
  },
  timeoutsMs: { onParentUpdate: 2_000 },
})

const noteFinding = tool({
  description: 'Notes a finding for everybody who works on this.',
  inputSchema: z.object({ finding: z.string() }),
  async execute({ finding }) {
    const held = await getLayerState('briefing')
    const before = briefingOf(held?.state)
    // The version lets two calls at once not lose a finding: the second one throws a LayerVersionError.
    await setLayerState(
      'briefing',
      { ...before, findings: [...before.findings, finding] },
      { version: held?.version ?? 0 },
    )
    return 'Noted.'
  },
})

export default defineConfig({
  layers: [briefing],
  tools: [{ id: 'noteFinding', group: 'research', userSelect: true, tool: noteFinding }],
})

export async function research(offshoot: Offshoot, caller: SpawnContext, goal: string, question: string) {
  const of = { convoId: caller.parentConvoId }
  await offshoot.setLayerState(caller.userId, of, 'briefing', { goal, findings: [] })
  const outcome = await offshoot.run(caller, {
    bot: { botGroup: 'forge', botHandle: 'researcher' },
    message: question,
    layers: ['briefing'],
  })
  const state = (await offshoot.layerState(caller.userId, of, 'briefing'))?.state
  return { outcome, findings: briefingOf(state).findings }
}
