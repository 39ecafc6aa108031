// Documents tell of the tree as it is: quotes, links, paths and commands are held to it.
import { existsSync, globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { expect, test } from 'vitest'

const root = path.resolve(import.meta.dirname, '..')
const read = (file: string) => readFileSync(path.join(root, file), 'utf8')
const documents = globSync(['*.md', 'docs/**/*.md'], { cwd: root }).map((file) => ({ file, text: read(file) }))

/** What `find` finds wrong in each document, with the document's name before it. */
function faults(find: (document: { file: string; text: string }) => string[]): string[] {
  return documents.flatMap((document) => find(document).map((fault) => `${document.file}: ${fault}`))
}

test('code in a document is a quote of a file, named behind the fence', () => {
  const wrong = faults(({ text }) =>
    [...text.matchAll(/^```((?:ts|tsx|js)\b[^\n]*)\n(.*?)^```$/gms)].flatMap(([, info = '', body = '']) => {
      const file = info.split(' ')[1]
      return file !== undefined && read(file).includes(body) ? [] : [`${info}\n${body}`]
    }),
  )
  expect(wrong).toEqual([])
})

test('links and paths in a document lead to what is there', () => {
  const wrong = faults(({ file, text }) => {
    const links = [...text.matchAll(/\]\((?!https?:)([^)#]+)/g)].map(([, target = '']) =>
      path.join(path.dirname(file), target),
    )
    const names = [...text.matchAll(/`((?:packages|prisma|dev|testing|examples|docs|bench|faults)\/[\w./-]+)`/g)].map(
      ([, name = '']) => name,
    )
    return [...links, ...names].filter((target) => !existsSync(path.join(root, target)))
  })
  expect(wrong).toEqual([])
})

test('a link into a document leads to one of its headings', () => {
  const wrong = faults(({ file, text }) =>
    [...text.matchAll(/\]\((?!https?:)([^)#]*)#([^)]+)\)/g)]
      .map(([, to = '', anchor = '']) => ({ target: to === '' ? file : path.join(path.dirname(file), to), anchor }))
      .filter(({ target, anchor }) => !anchorsOf(read(target)).includes(anchor))
      .map(({ target, anchor }) => `${target}#${anchor}`),
  )
  expect(wrong).toEqual([])
})

/** As GitHub makes them. */
function anchorsOf(text: string): string[] {
  const prose = text.replaceAll(/^```.*?^```$/gms, '')
  return [...prose.matchAll(/^#+ (.*)$/gm)].map(([, heading = '']) =>
    heading
      .replaceAll(/\]\([^)]*\)/g, '')
      .toLowerCase()
      .replaceAll(/[^\p{L}\d_ -]/gu, '')
      .replaceAll(' ', '-'),
  )
}

test('the commands in a document are scripts of package.json', () => {
  const { scripts }: { scripts: Record<string, string> } = JSON.parse(read('package.json'))
  const ofPnpm = ['exec', 'env']
  const wrong = faults(({ text }) =>
    [...text.matchAll(/(?:`pnpm|\bpnpm@[\d.]+) ([a-z][\w:]*)/g)]
      .map(([, name = '']) => name)
      .filter((name) => !(name in scripts) && !ofPnpm.includes(name)),
  )
  expect(wrong).toEqual([])
})
