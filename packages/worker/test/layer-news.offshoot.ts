// A layer whose `onParentUpdate` leaves a note of each run in NOTES_FILE, and tools that write the state it runs for: a
// job's own, and that of any job of its user. A state says when its write began.
import { appendFileSync } from 'node:fs'
import { createOffshoot } from '@offshoot/shared'
import { defineConfig } from '@offshoot/shared/extensions'
import { defineLayer, setLayerState } from '@offshoot/shared/layers'
import { getSpawnContext } from '@offshoot/shared/spawn-context'
import { tool } from 'ai'
import { z } from 'zod'

const notesFile = process.env['NOTES_FILE'] ?? ''

/** What is written: processes of one machine have one clock. */
export const newsSchema = z.object({ label: z.string(), begunAt: z.number() })
export const noteSchema = z.object({ child: z.string(), pid: z.number(), label: z.string(), delayMs: z.number() })

const news = defineLayer({
  id: 'news',
  onSpawn: ({ job }) => ({ childState: job.message }),
  onParentUpdate({ parentState, childState }) {
    const now = Date.now()
    const { label, begunAt } = newsSchema.parse(parentState)
    const note = { child: String(childState), pid: process.pid, label, delayMs: now - begunAt }
    appendFileSync(notesFile, `${JSON.stringify(note satisfies z.infer<typeof noteSchema>)}\n`)
    return { items: [{ text: label }] }
  },
})

export default defineConfig({
  layers: [news],
  tools: [
    {
      id: 'tellBelow',
      group: 'test',
      userSelect: false,
      tool: tool({
        inputSchema: z.object({ label: z.string() }),
        execute: ({ label }) => setLayerState('news', { label, begunAt: Date.now() }),
      }),
    },
    {
      id: 'tellBeside',
      group: 'test',
      userSelect: false,
      tool: tool({
        inputSchema: z.object({ jobId: z.string(), label: z.string() }),
        async execute({ jobId, label }) {
          const offshoot = await createOffshoot({ extensions: { layers: [news] } })
          const { userId } = getSpawnContext()
          const written = await offshoot.setLayerState(userId, { jobId }, 'news', { label, begunAt: Date.now() })
          await offshoot.close()
          return written
        },
      }),
    },
  ],
})
