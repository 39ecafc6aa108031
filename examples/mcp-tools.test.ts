import { createApiKey, ensureUser } from '@offshoot/shared/db/users'
import { type McpProcess, startMcpProcess } from '@offshoot/testing/mcp-process'
import { startApiProcess, type TestProcess } from '@offshoot/testing/processes'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ExampleStage, openExampleStage } from './example-stage.ts'
import { askWithOneTool, writeLibrarian } from './mcp-tools.ts'

const TOKEN = 'the-token-of-the-files'

let example: ExampleStage
let server: TestProcess
let files: McpProcess
beforeAll(async () => {
  files = await startMcpProcess({ token: TOKEN })
  example = await openExampleStage({ MCP_SECRET_FILES: TOKEN })
  server = await startApiProcess(example.environment)
})
afterAll(async () => {
  await server.stop()
  await example.close()
  await files.stop()
})

test('a bot that an admin has written uses the tools of its MCP server', async () => {
  const { database } = example.stage.runtime
  await ensureUser(database, 'root')
  await database.user.update({ where: { id: 'root' }, data: { admin: true } })
  await ensureUser(database, 'alice')
  example.mock.answer('What do the files say?', [
    { calls: [{ name: 'files_echo', arguments: { text: 'They say hello.' } }] },
    'They say hello.',
  ])

  await writeLibrarian({ url: server.url, key: await createApiKey(database, 'root') }, files.url)
  const alice = { url: server.url, key: await createApiKey(database, 'alice') }
  const outcome = await askWithOneTool(alice, 'What do the files say?')

  expect(outcome).toMatchObject({ state: 'completed', result: 'They say hello.', steps: 2 })
  const [first, second] = example.mock.requests('What do the files say?')
  expect(first?.tools?.map((tool) => tool.function.name)).toEqual(['files_echo'])
  expect(JSON.stringify(second?.messages.find((message) => message.role === 'tool'))).toContain('They say hello.')
})
