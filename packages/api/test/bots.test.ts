import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ApiUnderTest, openApi, type Person } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await openApi()
})
afterAll(() => api.close())

const BOT = {
  name: 'Helper',
  integration: 'openai',
  modelName: 'gpt-5',
  systemPrompt: 'Keep this to yourself.',
}
const WITH_SERVERS = {
  ...BOT,
  mcpServers: [{ name: 'files', url: 'https://mcp.example/', headers: { authorization: 'Bearer hidden' } }],
}
const put = (address: string, as: Person, bot: object = BOT) =>
  api.json(`/v1/bots/${address}`, { as, method: 'PUT', body: bot })

describe('writing a bot', () => {
  test('an admin makes one for everybody, a user one of its own', async () => {
    expect(await put('team/shared', 'admin')).toMatchObject({ status: 201, body: { ownerId: null, version: 1 } })
    expect(await put('team/mine', 'alice')).toMatchObject({ status: 201, body: { ownerId: 'alice', version: 1 } })
    expect(await put('team/mine', 'alice')).toMatchObject({ status: 200, body: { ownerId: 'alice', version: 2 } })
  })

  test('nobody but its owner or an admin overwrites one', async () => {
    await put('team/guarded', 'alice')
    await put('team/common', 'admin')
    expect(await put('team/guarded', 'bob')).toMatchObject({ status: 404, body: { code: 'not_found' } })
    expect(await put('team/common', 'bob')).toMatchObject({ status: 403, body: { code: 'not_authorized' } })
    expect(await put('team/guarded', 'admin', { ...BOT, name: 'Fixed' })).toMatchObject({
      status: 200,
      body: { ownerId: 'alice', name: 'Fixed' },
    })
  })

  test('of many who come at once exactly one makes it', async () => {
    const people: Person[] = ['alice', 'bob', 'alice', 'bob', 'alice', 'bob']
    const answers = await Promise.all(people.map((as) => put('team/raced', as)))
    expect(answers.filter((answer) => answer.status === 201)).toHaveLength(1)
    const row = await api.stage.runtime.database.bot.findUniqueOrThrow({
      where: { group_handle: { group: 'team', handle: 'raced' } },
    })
    for (const [at, answer] of answers.entries()) expect(answer.status === 404).toBe(people[at] !== row.ownerId)
  })

  test('only an admin gives a bot MCP servers: a worker would connect wherever a user likes', async () => {
    expect(await put('team/connected', 'alice', WITH_SERVERS)).toMatchObject({
      status: 403,
      body: { code: 'not_authorized', detail: expect.stringContaining('Only an admin may give a bot mcpServers.') },
    })
    expect((await put('team/connected', 'admin', WITH_SERVERS)).status).toBe(201)
  })

  test.each([
    ['ftp://mcp.example/', 'files'],
    ['file:///etc/passwd', 'files'],
    ['https://mcp.example/', 'my_files'],
    ['https://mcp.example/', 'a-name-that-is-too-long-for-it'],
  ])('an MCP server at %s with the name %s is refused', async (url, name) => {
    const answer = await put('team/odd', 'admin', { ...BOT, mcpServers: [{ name, url }] })
    expect(answer).toMatchObject({ status: 400, body: { detail: expect.stringContaining('mcpServers') } })
  })

  test('two MCP servers with one name are refused', async () => {
    const server = { name: 'files', url: 'https://mcp.example/' }
    expect((await put('team/odd', 'admin', { ...BOT, mcpServers: [server, server] })).status).toBe(400)
  })

  test('an address or a field that is not known is refused', async () => {
    expect((await put('Team/x', 'alice')).status).toBe(400)
    expect((await put('team/x', 'alice', { ...BOT, ownerId: 'bob' })).body['detail']).toContain('ownerId')
    expect((await put('team/x', 'alice', { ...BOT, temperature: 3 })).status).toBe(400)
  })
})

describe('reading bots', () => {
  test('SEC-6: what a bot was told and how it signs in is for those who may change it', async () => {
    await put('team/secretive', 'admin', WITH_SERVERS)
    const seen = await api.call('/v1/bots/team/secretive', { as: 'alice' })
    expect(seen.status).toBe(200)
    expect(await seen.text()).not.toMatch(/Keep this to yourself|hidden/)
    const listed = (await api.json('/v1/bots', { as: 'bob' })).body['bots'] as { handle: string }[]
    expect(JSON.stringify(listed.find((bot) => bot.handle === 'secretive'))).not.toMatch(/Keep this|hidden/)
    expect(await api.json('/v1/bots/team/secretive', { as: 'admin' })).toMatchObject({ body: WITH_SERVERS })
  })

  test('SEC-6: how a bot signs in is for admins, also where an admin has given MCP servers to a user’s bot', async () => {
    await put('team/served', 'alice')
    await put('team/served', 'admin', WITH_SERVERS)
    const { body } = await api.json('/v1/bots/team/served', { as: 'alice' })
    expect(body).toMatchObject({ ownerId: 'alice', systemPrompt: BOT.systemPrompt })
    expect(JSON.stringify(body)).not.toContain('hidden')
  })

  test('the list holds one’s own and everybody’s', async () => {
    await put('lists/own', 'alice')
    await put('lists/bobs', 'bob')
    const { body } = await api.json('/v1/bots', { as: 'alice' })
    const addresses = (body['bots'] as { group: string; handle: string }[]).map((bot) => `${bot.group}/${bot.handle}`)
    expect(addresses).toContain('lists/own')
    expect(addresses).toContain('forge/planner')
    expect(addresses).not.toContain('lists/bobs')
  })
})
