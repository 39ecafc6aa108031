// The config module of the fault suite's workers. Its tools leave notes in the file that NOTES_FILE names: what a tool
// did is known from there, whatever its process could still write.
import { access, appendFile } from 'node:fs/promises'
import { defineConfig } from '@offshoot/shared/extensions'
import type { AiTool } from '@offshoot/shared/tools/registry'
import { z } from 'zod'

const file = process.env['NOTES_FILE'] ?? ''
const inputSchema = z.object({ text: z.string() })

const note = (line: string) => appendFile(file, `${line}\n`)

function toolOf(id: string, execute: (text: string) => Promise<string>, onCrash?: AiTool['onCrash']): AiTool {
  return {
    id,
    group: 'test',
    userSelect: true,
    ...(onCrash === undefined ? {} : { onCrash }),
    tool: { inputSchema, execute: ({ text }: z.infer<typeof inputSchema>) => execute(text) },
  }
}

/** Notes its beginning and its end, with some work in between. */
async function work(text: string): Promise<string> {
  await note(`begins ${text}`)
  await new Promise((resolve) => setTimeout(resolve, 20))
  await note(`ends ${text}`)
  return `did ${text}`
}

/** The same; it ends once a file with the text as its name's end is there. */
async function hold(text: string): Promise<string> {
  await note(`begins ${text}`)
  while (!(await exists(`${file}.${text}`))) await new Promise((resolve) => setTimeout(resolve, 20))
  await note(`ends ${text}`)
  return `held ${text}`
}

function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  )
}

export default defineConfig({
  tools: [
    toolOf('work', work),
    toolOf('workAgain', work, 'retry'),
    toolOf('hold', hold),
    toolOf('holdAgain', hold, 'retry'),
    toolOf(
      'die',
      async (text) => {
        await note(`begins ${text}`)
        process.kill(process.pid, 'SIGKILL')
        return new Promise(() => undefined)
      },
      'retry',
    ),
    toolOf('rejectAside', async (text) => {
      await note(`begins ${text}`)
      void Promise.reject(new Error('a rejection that nobody handles'))
      return new Promise(() => undefined)
    }),
    toolOf('throwAside', async (text) => {
      await note(`begins ${text}`)
      setTimeout(() => {
        throw new Error('an exception that nobody catches')
      }, 0)
      return new Promise(() => undefined)
    }),
  ],
})
