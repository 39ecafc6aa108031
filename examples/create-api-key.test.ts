import { execFile } from 'node:child_process'
import path from 'node:path'
import { promisify } from 'node:util'
import { findApiKey } from '@offshoot/shared/db/users'
import { openTestStage, type TestStage } from '@offshoot/testing/test-stage'
import { afterAll, beforeAll, expect, test } from 'vitest'

const run = promisify(execFile)
const script = path.join(import.meta.dirname, 'create-api-key.ts')

let stage: TestStage
beforeAll(async () => {
  stage = await openTestStage()
})
afterAll(() => stage.close())

async function create(...args: string[]): Promise<string> {
  const { stdout } = await run(process.execPath, [script, ...args], { env: { ...process.env, ...stage.environment } })
  return stdout.trim()
}

test('a key is a user, an admin or a service', async () => {
  const { database } = stage.runtime
  expect(await findApiKey(database, await create('alice'))).toMatchObject({
    userId: 'alice',
    kind: 'user',
    admin: false,
  })
  expect(await findApiKey(database, await create('root', '--admin'))).toMatchObject({ userId: 'root', admin: true })
  expect(await findApiKey(database, await create('shop', '--service'))).toMatchObject({ kind: 'service', admin: false })
})
