// A host's process that runs what it is told over IPC: inline, as alice. It tells each outcome.
import { createOffshoot } from '@offshoot/shared'
import type { ProgramSpawnInput } from '@offshoot/shared/contracts/spawn'
import { createInlineRunner } from '../src/inline-runner.ts'

const offshoot = await createOffshoot({ inlineRunner: createInlineRunner })
const alice = {
  userId: 'alice',
  parentConvoId: 'chat',
  parentConvoOwnerId: 'alice',
  parentConvoSpaceId: null,
  spawnDepth: 0,
}

process.on('message', (input: ProgramSpawnInput) => {
  void offshoot.run(alice, { ...input, runner: 'inline' }).then((outcome) => process.send?.({ outcome }))
})
process.once('SIGTERM', () => {
  // Then nothing keeps this process.
  void offshoot.close().then(() => process.channel?.unref())
})
process.send?.({ ready: true })
