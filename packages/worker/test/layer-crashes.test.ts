// Processes that are lost in the middle of a hook: what was stored is not made again, and what was not is made anew.
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { readLayer } from '@offshoot/shared/operations/layer-state'
import { endOf, spawnRoot } from '@offshoot/testing/agents'
import { type Fleet, startFleet } from '@offshoot/testing/fleet'
import { type RawModel, says, startRawModel } from '@offshoot/testing/raw-model'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import config from './layers.offshoot.ts'

let folder: string
let notesFile: string
let raw: RawModel
let stage: TestStage
let fleet: Fleet

beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'offshoot-layers-'))
  notesFile = path.join(folder, 'notes')
  await writeFile(notesFile, '')
  raw = await startRawModel()
  stage = await openTestStage({
    environment: {
      OPENAI_BASE_URL: raw.baseUrl,
      OFFSHOOT_CONFIG: path.join(import.meta.dirname, 'layers.offshoot.ts'),
      NOTES_FILE: notesFile,
      WORKER_LOCK_MS: '3000',
    },
    extensions: config,
  })
  await stage.putBot('bot', { layers: ['counts', 'fatal'] })
  fleet = await startFleet(stage, 2)
  fleet.restart()
})

afterAll(async () => {
  await fleet.stop()
  await stage.close()
  await raw.stop()
  await rm(folder, { recursive: true, force: true })
})

async function countNotes(line: string): Promise<number> {
  return (await readFile(notesFile, 'utf8')).split('\n').filter((each) => each === line).length
}

test('a process that is lost between two onSpawn hooks: the first does not run again, and its item is there once', async () => {
  raw.answer('[context layer fatal]\ngo dies in spawn', says('done'))
  const { id } = await spawnRoot(stage, 'bot', 'dies in spawn')
  expect(await endOf(stage, id, 30_000)).toMatchObject({ state: 'completed', result: 'done!', attempt: 2, steps: 1 })
  expect(await countNotes('spawn dies in spawn')).toBe(1)
  const items = await stage.runtime.database.inboxItem.findMany({ where: { jobId: id }, orderBy: { seq: 'asc' } })
  expect(items.map(({ kind, consumedAtStep }) => ({ kind, consumedAtStep }))).toEqual([
    { kind: 'layer', consumedAtStep: 0 },
    { kind: 'layer', consumedAtStep: 0 },
  ])
})

test('a process that is lost between onReturn and the end: the hooks run again, and their writes are made once', async () => {
  raw.answer('[context layer fatal]\ngo dies in return', says('done'))
  const of = { convoId: 'convo-of-host' }
  const alice = { userId: 'alice', admin: false }
  const before = await readLayer(stage.runtime, alice, of, 'counts')
  const { id } = await spawnRoot(stage, 'bot', 'dies in return')
  expect(await endOf(stage, id, 30_000)).toMatchObject({ state: 'completed', result: 'done!', attempt: 2, steps: 1 })
  expect(await countNotes('return dies in return')).toBe(2)
  const version = (before?.version ?? 0) + 1
  expect(await readLayer(stage.runtime, alice, of, 'counts')).toEqual({ state: version, version })
  // What was paid for is not paid for again.
  expect(raw.requests('[context layer fatal]\ngo dies in return')).toHaveLength(1)
})
