// What the fault suite stands on: worker processes that load faults/tools.offshoot.ts, a model whose calls can be counted
// per job and step, and agents of several steps.
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import os from 'node:os'
import path from 'node:path'
import type { AgentJob } from '@offshoot/shared/db/agent-jobs'
import { type SpawnMore, spawnRoot } from './agents.ts'
import { type Fleet, startFleet } from './fleet.ts'
import { type RawModel, type RawRequest, type RawScript, startRawModel, stepOf } from './raw-model.ts'
import { openTestStage, type TestStage } from './test-stage.ts'
import { waitUntil } from './wait-until.ts'

export interface FaultStage extends TestStage {
  model: RawModel
  fleet: Fleet
  /** Spawns one agent for each message; `script` says what the model answers in each of its steps. */
  spawnAgents(messages: readonly string[], script: RawScript, more?: SpawnMore): Promise<AgentJob[]>
  /** The model calls that were made for a step of the agent with that message. */
  callsOf(message: string, step: number): RawRequest[]
  /** How often a tool has noted `<word> <text>`, in which `word` is `begins` or `ends`. */
  countNotes(line: string): Promise<number>
  untilNote(line: string): Promise<void>
  /** Lets the tools that hold this text end. */
  release(text: string): Promise<void>
}

const CONFIG_MODULE = path.resolve(import.meta.dirname, '../../faults/tools.offshoot.ts')

/** Heartbeats of 0.5 s, locks of 2 s, so that each scenario takes seconds. */
const SHORT_LIMITS = { WORKER_HEARTBEAT_MS: '500', WORKER_LOCK_MS: '2000' }

/** `workers` processes, and `forge/agent`, which has every tool of the config module. */
export async function openFaultStage({
  workers,
  environment = {},
}: {
  workers: number
  environment?: Record<string, string>
}): Promise<FaultStage> {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'offshoot-faults-'))
  const notesFile = path.join(folder, 'notes')
  await writeFile(notesFile, '')
  const model = await startRawModel()
  const stage = await openTestStage({
    environment: {
      ...SHORT_LIMITS,
      OPENAI_BASE_URL: model.baseUrl,
      OFFSHOOT_CONFIG: CONFIG_MODULE,
      NOTES_FILE: notesFile,
      ...environment,
    },
  })
  await stage.putBot('agent', {
    toolNames: ['spawnAgent', 'work', 'workAgain', 'hold', 'holdAgain', 'die', 'rejectAside', 'throwAside'],
  })
  const fleet = await startFleet(stage, workers)
  const countNotes = async (line: string) =>
    (await readFile(notesFile, 'utf8')).split('\n').filter((each) => each === line).length
  return {
    ...stage,
    model,
    fleet,
    countNotes,
    async spawnAgents(messages, script, more = {}) {
      for (const message of messages) model.answer(message, script)
      return Promise.all(messages.map((message) => spawnRoot(stage, 'agent', message, more)))
    },
    callsOf: (message, step) => model.requests(message).filter((request) => stepOf(request) === step),
    untilNote: async (line) =>
      void (await waitUntil(async () => (await countNotes(line)) > 0, { what: `the note "${line}"` })),
    release: (text) => writeFile(`${notesFile}.${text}`, ''),
    async close() {
      await fleet.stop()
      await stage.close()
      await model.stop()
      await rm(folder, { recursive: true, force: true })
    },
  }
}
