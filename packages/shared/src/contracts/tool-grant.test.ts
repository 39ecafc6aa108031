import { describe, expect, test } from 'vitest'
import type { McpServer } from './bot.ts'
import { grantedNames, grantOfBot, grantOfJob, mcpToolName, narrowGrant } from './tool-grant.ts'

const files: McpServer = { name: 'files', url: 'https://files.example/mcp' }
const web: McpServer = { name: 'web', url: 'https://web.example/mcp', tools: ['search', 'read.page'] }
const readPage = mcpToolName('web', 'read.page')

function bot(toolNames: string[], mcpServers: McpServer[] = []) {
  return { toolNames, mcpServers }
}

function namesOf(...[child, parent, filter]: Parameters<typeof narrowGrant>) {
  const { grant, unknown } = narrowGrant(child, parent, filter)
  return unknown.length === 0 ? grantedNames(grant) : { unknown }
}

describe('the name of an MCP tool', () => {
  test.each([
    ['read_file', 'files_read_file'],
    ['read-2', 'files_read-2'],
  ])('%s is %s', (tool, name) => {
    expect(mcpToolName('files', tool)).toBe(name)
  })

  test.each(['read.file', 'lire/fichier été', 'x'.repeat(128)])(
    'of %s is one that every provider takes, and its own',
    (tool) => {
      expect(mcpToolName('files', tool)).toMatch(/^files_[a-zA-Z0-9_-]{1,58}$/)
      expect(mcpToolName('files', tool)).not.toBe(mcpToolName('files', `${tool}!`))
    },
  )
})

test('a bot has the tools that it names, and all of a server’s or those that are listed', () => {
  expect(grantedNames(grantOfBot(bot(['note'], [files, web])))).toEqual(['note', 'files_*', 'web_search', readPage])
})

test('a name of the bot’s own tools is never one of a server’s', () => {
  const both = bot(['web_search'], [web])
  expect(grantOfBot(both)).toMatchObject({ native: ['web_search'], mcp: [readPage] })
  expect(grantOfJob(both, ['web_search', readPage])).toMatchObject({ native: ['web_search'], mcp: [readPage] })
  // The parent has only the server's tool of that name.
  const parent = grantOfBot(bot([], [{ ...web, tools: ['search'] }]))
  expect(namesOf(bot(['web_search'], [web]), parent, [])).toEqual([])
  const wide = bot(['files_delete'], [files])
  expect(namesOf(wide, grantOfBot(bot([], [files])), ['files_delete'])).toEqual({ unknown: ['files_delete'] })
})

describe('toolFilter', () => {
  const own = bot(['note', 'add'], [files, web])

  test.each([
    [['note'], ['note']],
    [['files_*'], ['files_*']],
    [['files_read'], ['files_read']],
    [['files_read', 'files_read'], ['files_read']],
    [['web_*'], ['web_search', readPage]],
    [
      ['add', 'web_search', 'files_read'],
      ['add', 'web_search', 'files_read'],
    ],
  ])('%j leaves %j', (filter, names) => {
    expect(namesOf(own, undefined, filter)).toEqual(names)
  })

  test.each(['web_delete', 'files', 'files*', '_files', 'other_*', '*', 'note_*', 'constructor', '__proto__', 'notes'])(
    '%s is unknown',
    (name) => {
      expect(namesOf(own, undefined, ['note', name])).toEqual({ unknown: [name] })
    },
  )
})

describe('SEC-4: a child’s tools are a subset of its parent’s', () => {
  test.each<[string, McpServer[], McpServer[], string[]]>([
    ['both have all of a server', [files], [files], ['files_*']],
    ['the parent has one tool of it', [files], [{ ...files, tools: ['read'] }], ['files_read']],
    ['the child has one tool of it', [{ ...files, tools: ['read'] }], [files], ['files_read']],
    [
      'they have different tools of it',
      [{ ...files, tools: ['read', 'list'] }],
      [{ ...files, tools: ['list', 'delete'] }],
      ['files_list'],
    ],
    ['the parent has no server', [files], [], []],
    ['the server of that name is at another address', [files], [{ ...files, url: 'https://evil.example/mcp' }], []],
    ['the server gets other headers', [{ ...files, headers: { authorization: 'more' } }], [files], []],
  ])('%s', (_, child, parent, names) => {
    expect(namesOf(bot(['note'], child), grantOfBot(bot(['note'], parent)), [])).toEqual(['note', ...names])
  })

  test('what the parent was given counts, not what its bot has', () => {
    const parent = grantOfJob(bot(['note'], [files]), ['files_read'])
    expect(namesOf(bot(['note'], [files]), parent, [])).toEqual(['files_read'])
    expect(namesOf(bot(['note'], [files]), parent, ['files_delete'])).toEqual({ unknown: ['files_delete'] })
  })
})
