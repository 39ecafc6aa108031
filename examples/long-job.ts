// A program that may be stopped while its sub-agent works, and finds it again:
// node examples/long-job.ts start "<what to do>" · node examples/long-job.ts attach <job id>
import { createOffshoot } from '@offshoot/shared'

const [command, text = ''] = process.argv.slice(2)
const offshoot = await createOffshoot()
const caller = {
  userId: 'alice',
  parentConvoId: 'nightly',
  parentConvoOwnerId: 'alice',
  parentConvoSpaceId: null,
  spawnDepth: 0,
}

const handle =
  command === 'attach'
    ? await offshoot.attach(caller.userId, text)
    : await offshoot.spawn(caller, { bot: { botGroup: 'forge', botHandle: 'researcher' }, message: text })
console.log(handle?.id ?? 'There is no such job.')
const outcome = await handle?.await()
if (outcome !== undefined) console.log('result' in outcome ? outcome.result : outcome.error)
await offshoot.close()
