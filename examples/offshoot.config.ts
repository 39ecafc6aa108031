// A config module: what a product adds to Offshoot. Every worker and API process loads it: OFFSHOOT_CONFIG=<this file>
import { createOpenAI } from '@ai-sdk/openai'
import { defineConfig } from '@offshoot/shared/extensions'
import { tool } from 'ai'
import { z } from 'zod'

const stock = new Map([
  ['kling', 41],
  ['trill', 0],
])

export default defineConfig({
  tools: [
    {
      id: 'countStock',
      group: 'shop',
      userSelect: true,
      // It only looks, so it may run again when a worker was lost in the middle of it.
      onCrash: 'retry',
      tool: tool({
        description: 'Says how many pieces of an article there are.',
        inputSchema: z.object({ article: z.string() }),
        execute: ({ article }) => ({ article, pieces: stock.get(article.toLowerCase()) ?? null }),
      }),
    },
  ],
  providers: {
    // Our own gateway to models: `modelOverride: "gateway:<model>"`. It learns for whom each call is.
    gateway: ({ userId, jobId }) =>
      createOpenAI({
        baseURL: process.env['GATEWAY_URL'] ?? 'http://127.0.0.1:8080/v1',
        apiKey: process.env['GATEWAY_KEY'] ?? 'none',
        headers: { 'x-user-id': userId, 'x-job-id': jobId },
      }),
  },
})
