// Layers whose hooks end their process once, before or after something was stored. Each call leaves a note in NOTES_FILE.
import { appendFileSync, existsSync, writeFileSync } from 'node:fs'
import { defineConfig } from '@offshoot/shared/extensions'
import { defineLayer } from '@offshoot/shared/layers'

const notesFile = process.env['NOTES_FILE'] ?? ''

function dieOnce(where: string): void {
  const mark = `${notesFile}.${where.replaceAll(' ', '-')}`
  if (existsSync(mark)) return
  writeFileSync(mark, '')
  process.kill(process.pid, 'SIGKILL')
}

const note = (line: string) => appendFileSync(notesFile, `${line}\n`)

export default defineConfig({
  layers: [
    defineLayer({
      id: 'counts',
      onSpawn({ job }) {
        note(`spawn ${job.message}`)
        return { childState: { message: job.message }, items: [{ text: `hello ${job.message}` }] }
      },
      onReturn({ parentState, childState, result }) {
        const { message } = childState as { message: string }
        note(`return ${message}`)
        return { parentState: Number(parentState ?? 0) + 1, result: `${result}!` }
      },
    }),
    defineLayer({
      id: 'fatal',
      onSpawn({ job }) {
        if (job.message.includes('spawn')) dieOnce(job.message)
        return { childState: job.message, items: [{ text: `go ${job.message}` }] }
      },
      onReturn({ childState }) {
        if (String(childState).includes('return')) dieOnce(String(childState))
      },
    }),
  ],
})
