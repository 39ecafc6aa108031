// A stage with a raw model and worker processes that load crash-tools.offshoot.ts, whose tools leave notes in a file.
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { type RawModel, startRawModel } from '@offshoot/testing/raw-model'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { waitUntil } from '@offshoot/testing/wait-until'
import { type Fleet, startFleet } from '@offshoot/testing/fleet'

export interface SystemStage extends TestStage {
  raw: RawModel
  fleet: Fleet
  /** The notes that end with this text. */
  notesOf(text: string): Promise<string[]>
  untilNote(line: string): Promise<void>
  /** Lets a slow tool end. */
  release(text: string): Promise<void>
}

/** Two workers of one slot each, and `forge/bot`, which has their tools. */
export async function openSystemStage(environment: Record<string, string> = {}): Promise<SystemStage> {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'offshoot-system-'))
  const notesFile = path.join(folder, 'notes')
  await writeFile(notesFile, '')
  const raw = await startRawModel()
  const stage = await openTestStage({
    environment: {
      OPENAI_BASE_URL: raw.baseUrl,
      OFFSHOOT_CONFIG: path.join(import.meta.dirname, 'crash-tools.offshoot.ts'),
      NOTES_FILE: notesFile,
      WORKER_CONCURRENCY: '1',
      // Real processes share the cores with other test files: a slow one is not a lost one.
      WORKER_LOCK_MS: '3000',
      ...environment,
    },
  })
  await stage.putBot('bot', { toolNames: ['spawnAgent', 'note', 'slow', 'slowRetry', 'slowFail', 'order', 'stubborn'] })
  const fleet = await startFleet(stage, 2)
  const notes = async () => (await readFile(notesFile, 'utf8')).split('\n').filter(Boolean)
  return {
    ...stage,
    raw,
    fleet,
    notesOf: async (text) => (await notes()).filter((line) => line.endsWith(` ${text}`)),
    untilNote: async (line) =>
      void (await waitUntil(async () => (await notes()).includes(line), { what: `the note "${line}"` })),
    release: (text) => writeFile(`${notesFile}.${text}`, ''),
    async close() {
      await fleet.stop()
      await stage.close()
      await raw.stop()
      await rm(folder, { recursive: true, force: true })
    },
  }
}
