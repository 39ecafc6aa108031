// .env.example tells people what environmentSchema tells the program.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { parseEnv } from 'node:util'
import { expect, test } from 'vitest'
import { environmentSchema, loadConfig } from '../src/config.ts'

const text = readFileSync(path.resolve(import.meta.dirname, '../../../.env.example'), 'utf8')
const example: NodeJS.Dict<string> = parseEnv(text)
/** Where there is no default, the file names an address that a person would begin with. */
const EXAMPLES = ['DATABASE_URL', 'REDIS_URL']

test('.env.example names every variable of the schema, once, and no other', () => {
  const named = [...text.matchAll(/^#? ?([A-Z][A-Z0-9_]*)=/gm)].map(([, name = '']) => name)
  expect(named.toSorted()).toEqual(Object.keys(environmentSchema.shape).toSorted())
})

test('as it stands it is a usable environment', () => {
  expect(() => loadConfig(example)).not.toThrow()
})

test('its values are the defaults', () => {
  const written = environmentSchema.parse(withoutEmpty(example))
  const defaults = environmentSchema.parse(Object.fromEntries(EXAMPLES.map((name) => [name, example[name]])))
  expect(written).toEqual(defaults)
})

test('it shows every default there is, also in words', () => {
  const { DATABASE_URL: _, ...defaults } = environmentSchema.parse({ DATABASE_URL: example['DATABASE_URL'] })
  for (const [name, value] of Object.entries(defaults)) {
    expect(example[name], name).toBe(String(value))
    expect(commentOf(name), name).toContain(`Default: ${String(value)}`)
  }
})

test('every variable has a comment, and every time says its unit', () => {
  for (const name of Object.keys(environmentSchema.shape)) {
    const unit = /_(MS|DAYS)$/.exec(name)?.[1]
    expect(commentOf(name), name).toMatch(unit === undefined ? /./ : unit === 'MS' ? /\bmilliseconds\b/i : /\bdays\b/i)
  }
})

function withoutEmpty(environment: NodeJS.Dict<string>) {
  return Object.fromEntries(Object.entries(environment).filter(([, value]) => value !== ''))
}

/** The comment lines above a variable; variables that follow each other share theirs. */
function commentOf(name: string): string {
  const before = text.slice(0, text.search(new RegExp(`^${name}=`, 'm')))
  const block = before.split('\n\n').at(-1) ?? ''
  const lines = block.split('\n').filter((line) => line !== '')
  const end = lines.findLastIndex((line) => line.startsWith('#'))
  const start = lines.findLastIndex((line, at) => at <= end && !line.startsWith('#'))
  return lines
    .slice(start + 1, end + 1)
    .map((line) => line.replace(/^# ?/, ''))
    .join(' ')
}
