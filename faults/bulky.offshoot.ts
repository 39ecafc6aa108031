// The config module of the workers in redis-size.test.ts: a tool that returns 2 MB.
import { defineConfig } from '@offshoot/shared/extensions'
import { z } from 'zod'

const RESULT = 'x'.repeat(2_000_000)

export default defineConfig({
  tools: [
    {
      id: 'bulky',
      group: 'test',
      userSelect: true,
      tool: { inputSchema: z.object({}), execute: () => RESULT },
    },
  ],
})
