// A bot with tools of MCP servers, over HTTP. docs/guide/mcp-tools.md explains it.
import type { Api } from './http-client.ts'

/** As an admin: `api.key` is an admin's key. */
export async function writeLibrarian({ url, key }: Api, filesUrl: string): Promise<void> {
  const bot = {
    name: 'Librarian',
    integration: 'openai',
    modelName: 'gpt-5-mini',
    systemPrompt: 'You know what the files say.',
    mcpServers: [
      {
        name: 'files',
        url: filesUrl,
        // The worker puts in the variable of its environment.
        headers: { authorization: 'Bearer ${MCP_SECRET_FILES}' },
        // Only these; leave `tools` out for all that the server offers.
        tools: ['echo', 'look'],
      },
    ],
  }
  const response = await fetch(`${url}/v1/bots/forge/librarian`, {
    method: 'PUT',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify(bot),
  })
  if (!response.ok) throw new Error(await response.text())
}

export async function askWithOneTool({ url, key }: Api, question: string): Promise<unknown> {
  const response = await fetch(`${url}/v1/agents`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({
      bot: { botGroup: 'forge', botHandle: 'librarian' },
      message: question,
      overrides: { toolFilter: ['files_echo'] },
    }),
  })
  return response.json()
}
