// The config module of the benchmark's workers.
import { defineConfig } from '@offshoot/shared/extensions'
import { tool } from 'ai'
import { z } from 'zod'

export default defineConfig({
  tools: [
    {
      id: 'work',
      group: 'bench',
      userSelect: false,
      tool: tool({ inputSchema: z.object({ text: z.string() }), execute: ({ text }) => `worked on ${text}` }),
    },
  ],
})
