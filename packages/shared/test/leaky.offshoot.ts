// A config module whose tools and providers fail with words that nobody may read.
import { createOpenAI } from '@ai-sdk/openai'
import { jsonSchema, tool } from 'ai'
import { defineConfig } from '../src/extensions.ts'

const inputSchema = jsonSchema<object>({ type: 'object' })
const secretOf = (name: string) => process.env[name] ?? ''

export default defineConfig({
  tools: [
    {
      id: 'queryShop',
      group: 'test',
      userSelect: false,
      tool: tool({
        inputSchema,
        execute: async (): Promise<string> => {
          throw new Error(`connect ECONNREFUSED ${secretOf('SHOP_DATABASE_URL')}`)
        },
      }),
    },
    {
      id: 'callPartner',
      group: 'test',
      userSelect: false,
      tool: tool({
        inputSchema,
        // Its first value comes, and then it fails.
        async *execute(): AsyncGenerator<string> {
          yield 'asking'
          throw new Error(
            `401 for Authorization: Bearer ${secretOf('PARTNER_TOKEN')}, key ${secretOf('OPENAI_API_KEY')}`,
          )
        },
      }),
    },
  ],
  providers: {
    // Its address carries a login, which `fetch` refuses and repeats in its error.
    proxied: () => createOpenAI({ baseURL: secretOf('PROXY_URL'), apiKey: secretOf('OPENAI_API_KEY') }),
    broken: () => {
      throw new Error(`no client for ${secretOf('OPENAI_API_KEY')}`)
    },
  },
})
