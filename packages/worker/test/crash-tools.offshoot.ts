// The config module of the workers in the system tests. Its tools leave notes in the file that NOTES_FILE names.
import { access, appendFile } from 'node:fs/promises'
import { jsonSchema, tool } from 'ai'
import { MockLanguageModelV4 } from 'ai/test'
import { defineConfig } from '@offshoot/shared/extensions'
import { getToolCall } from '@offshoot/shared/tool-call'
import type { AiTool } from '@offshoot/shared/tools/registry'

const file = process.env['NOTES_FILE'] ?? ''
const inputSchema = jsonSchema<{ text: string }>({ type: 'object', properties: { text: { type: 'string' } } })

const note = (line: string) => appendFile(file, `${line}\n`)

/** Notes that it begins, and that it ends once a file with the text as its name's end is there. */
function slow(id: string, onCrash?: AiTool['onCrash']): AiTool {
  return {
    id,
    group: 'test',
    userSelect: true,
    ...(onCrash === undefined ? {} : { onCrash }),
    tool: tool({
      inputSchema,
      async execute({ text }) {
        await note(`${id} begins ${text}`)
        while (!(await exists(`${file}.${text}`))) await new Promise((resolve) => setTimeout(resolve, 20))
        await note(`${id} ends ${text}`)
        return `${id} did ${text}`
      },
    }),
  }
}

function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  )
}

export default defineConfig({
  tools: [
    {
      id: 'note',
      group: 'test',
      userSelect: true,
      tool: tool({
        inputSchema,
        async execute({ text }) {
          await note(`note ${text}`)
          return `noted ${text}`
        },
      }),
    },
    slow('slow'),
    slow('slowRetry', 'retry'),
    slow('slowFail', 'fail'),
    {
      id: 'order',
      group: 'test',
      userSelect: true,
      onCrash: 'retry',
      tool: tool({
        inputSchema,
        async execute({ text }) {
          await note(`order ${getToolCall().idempotencyKey} ${text}`)
          while (!(await exists(`${file}.${text}`))) await new Promise((resolve) => setTimeout(resolve, 20))
          return `ordered ${text}`
        },
      }),
    },
    {
      id: 'stubborn',
      group: 'test',
      userSelect: true,
      tool: tool({
        inputSchema,
        async execute({ text }): Promise<string> {
          await note(`stubborn begins ${text}`)
          while (!(await exists(`${file}.${text}`))) await new Promise((resolve) => setTimeout(resolve, 20))
          await note(`stubborn throws ${text}`)
          throw new Error('much too late')
        },
      }),
    },
  ],
  providers: {
    parrot: ({ userId }) => ({
      specificationVersion: 'v4',
      languageModel: (modelId) =>
        new MockLanguageModelV4({
          doStream: async () => ({
            stream: ReadableStream.from([
              { type: 'text-start' as const, id: 't' },
              { type: 'text-delta' as const, id: 't', delta: `I am ${modelId} for ${userId}` },
              { type: 'text-end' as const, id: 't' },
              {
                type: 'finish' as const,
                usage: {
                  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
                  outputTokens: { total: 1, text: 1, reasoning: 0 },
                },
                finishReason: { unified: 'stop' as const, raw: undefined },
              },
            ]),
          }),
        }),
      embeddingModel: () => {
        throw new Error('the parrot embeds nothing')
      },
      imageModel: () => {
        throw new Error('the parrot draws nothing')
      },
    }),
  },
})
