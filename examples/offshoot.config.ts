// A config module: what a product adds to Offshoot. Every worker and API process loads it: OFFSHOOT_CONFIG=<this file>
import { createOpenAI } from '@ai-sdk/openai'
import { defineConfig } from '@offshoot/shared/extensions'
import { getToolCall } from '@offshoot/shared/tool-call'
import { tool } from 'ai'
import { z } from 'zod'

const stock = new Map([
  ['kling', 41],
  ['trill', 0],
])

const orders = new Map<string, { article: string; number: number }>()

function placeOrder(article: string, key: string) {
  const order = orders.get(key) ?? { article, number: orders.size + 1 }
  orders.set(key, order)
  return order
}

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
    {
      id: 'placeOrder',
      group: 'shop',
      userSelect: true,
      // The shop takes an order once a key, and a call has the same key each time it runs.
      onCrash: 'retry',
      tool: tool({
        description: 'Orders an article.',
        inputSchema: z.object({ article: z.string() }),
        execute: ({ article }) => placeOrder(article, getToolCall().idempotencyKey),
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
