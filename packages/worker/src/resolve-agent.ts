// What a job runs with: its model, instructions, tools and call settings, from the bot as it was when it was spawned.
import type { LanguageModel, ToolSet } from 'ai'
import type { JSONObject } from '@ai-sdk/provider'
import { botOfJob } from '@offshoot/shared/db/bots'
import { decodeStored } from '@offshoot/shared/db/stored-value'
import type { ClaimedJob } from '@offshoot/shared/db/agent-jobs'
import type { Bot } from '@offshoot/shared/contracts/bot'
import type { ModelPrice } from '@offshoot/shared/contracts/price'
import { allowsMcpTool, grantOfJob, type ToolGrant } from '@offshoot/shared/contracts/tool-grant'
import type { Reason } from '@offshoot/shared/contracts/reason'
import { type Overrides, overridesSchema } from '@offshoot/shared/contracts/spawn'
import { READ_RESULT } from '@offshoot/shared/contracts/truncated-result'
import { describeUnknownLayers } from '@offshoot/shared/operations/layer-state'
import { splitModel } from '@offshoot/shared/operations/prepare-spawn'
import type { Runtime } from '@offshoot/shared/runtime'
import { listAgentsTool, messageAgentTool } from '@offshoot/shared/tools/agent-tools'
import { abortAgentTool, checkAgentTool } from '@offshoot/shared/tools/job-tools'
import { readResultTool } from '@offshoot/shared/tools/read-result'
import { findAiTool } from '@offshoot/shared/tools/registry'
import { spawnAgentToolForWorker } from '@offshoot/shared/tools/spawn-agent'
import { absentTool, type McpTools } from './mcp-tools.ts'
import type { RunState } from './run-state.ts'

export interface ResolvedAgent {
  bot: Bot
  model: LanguageModel
  /** `integration:modelName` */
  modelId: string
  /** Absent: what the model costs is not known. */
  price?: ModelPrice
  instructions: string
  tools: ToolSet
  /** What of `tools` the model may call, when that is not all. */
  activeTools?: string[]
  grant: ToolGrant
  /** What the spawn named, if it did. */
  toolFilter: readonly string[]
  settings: { temperature?: number; reasoning?: 'minimal' | 'low' | 'medium' | 'high' }
  providerOptions: Record<string, JSONObject>
}

/** What stands in a job's row cannot be run: the provider or a tool that it names is not configured here. */
export class UnresolvableAgentError extends Error {
  override name = 'UnresolvableAgentError'
  readonly reason: Reason

  constructor(message: string, reason: Reason = 'invalid_request') {
    super(message)
    this.reason = reason
  }
}

/** @throws UnresolvableAgentError */
export function resolveAgent(runtime: Runtime, job: ClaimedJob): ResolvedAgent {
  const unknown = describeUnknownLayers(runtime.extensions, job.layers)
  if (unknown !== undefined)
    throw new UnresolvableAgentError(
      `${unknown} They are named by the job and not registered in this worker; add them to the config module (OFFSHOOT_CONFIG).`,
    )
  const bot = botOfJob(job)
  const overrides = overridesSchema.parse(decodeStored(job.overrides))
  const { integration, modelName } = splitModel(overrides.modelOverride ?? '') ?? bot
  const provider = runtime.extensions.providers.get(integration)
  if (provider === undefined) {
    throw new UnresolvableAgentError(
      `Unknown model provider: ${integration}. Known: ${[...runtime.extensions.providers.keys()].join(', ')}.`,
    )
  }
  const price = runtime.extensions.prices.get(`${integration}:${modelName}`)
  const grant = grantOfJob(bot, job.toolNames)
  return {
    bot,
    ...(price === undefined ? {} : { price }),
    grant,
    toolFilter: overrides.toolFilter ?? [],
    model: provider({ userId: job.ownerId, jobId: job.id }).languageModel(modelName),
    modelId: `${integration}:${modelName}`,
    instructions: computeInstructions(bot, overrides, job.depth),
    tools: resolveTools(runtime, job, grant),
    settings: callSettings(bot, overrides),
    providerOptions: { openai: openaiOptions(bot) },
  }
}

/**
 * The agent with the tools of its MCP servers, for a model call. A stored call that names a tool which is not there now is
 * answered with an error, and the model is not offered that tool.
 * @throws UnresolvableAgentError when the spawn named a tool that its server does not have, and the job has done nothing yet
 */
export function addMcpTools(agent: ResolvedAgent, mcp: McpTools, state: RunState): ResolvedAgent {
  const tools: ToolSet = { ...agent.tools, ...mcp.tools }
  const unknown = mcp.missing.filter((name) => agent.toolFilter.includes(name))
  if (unknown.length > 0 && state.steps.length === 0)
    throw new UnresolvableAgentError(
      `Unknown tools: ${unknown.join(', ')}. Known: ${Object.keys(tools)
        .filter((name) => name !== READ_RESULT)
        .join(', ')}.`,
      'unknown_tool',
    )
  const calls = state.stepToPlayBack()?.modelOutput.filter((part) => part.type === 'tool-call') ?? []
  const absent = calls
    .map(({ toolName }) => toolName)
    .filter((name) => !Object.hasOwn(tools, name) && allowsMcpTool(agent.grant.mcp, name))
  const notes = mcp.unavailable.map(
    (server) => `The tools of the MCP server "${server}" are not available now: it does not answer.`,
  )
  return {
    ...agent,
    instructions: [agent.instructions, ...notes].filter((text) => text !== '').join('\n\n'),
    tools: { ...tools, ...Object.fromEntries(absent.map((name) => [name, absentTool(name, mcp.unavailable)])) },
    ...(absent.length === 0 ? {} : { activeTools: Object.keys(tools) }),
  }
}

function computeInstructions(bot: Bot, overrides: Overrides, depth: number): string {
  const computed = depth === 0 ? [bot.systemPrompt] : [bot.systemPrompt, ...Object.values(bot.childPrompts ?? {})]
  const base = overrides.systemPromptOverride ?? computed.filter((text) => text !== '').join('\n\n')
  return [base, overrides.systemPromptAppend ?? ''].filter((text) => text !== '').join('\n\n')
}

function callSettings(bot: Bot, overrides: Overrides): ResolvedAgent['settings'] {
  const temperature = overrides.temperature ?? bot.temperature
  const reasoning = overrides.reasoningEffort ?? bot.reasoningEffort
  return { ...(temperature === undefined ? {} : { temperature }), ...(reasoning === undefined ? {} : { reasoning }) }
}

/** `store: false` unless the bot turns it on: what OpenAI keeps itself never reaches the journal. */
function openaiOptions(bot: Bot): JSONObject {
  return {
    store: bot.storeResponses,
    ...(bot.verbosity === undefined ? {} : { textVerbosity: bot.verbosity }),
    ...(bot.serviceTier === undefined ? {} : { serviceTier: bot.serviceTier }),
  }
}

function resolveTools(runtime: Runtime, job: ClaimedJob, grant: ToolGrant): ToolSet {
  // A running job reaches exactly its own subtree, whatever ids a model writes.
  const whoCalls = () => ({ reader: { runningJobId: job.id }, actorId: job.ownerId })
  const tools: [string, ToolSet[string]][] = []
  const missing: string[] = []
  for (const name of grant.native) {
    if (name === 'spawnAgent') tools.push([name, spawnAgentToolForWorker()])
    else if (name === 'checkAgent') tools.push([name, checkAgentTool(runtime, whoCalls, { canReadOn: true })])
    else if (name === 'abortAgent') tools.push([name, abortAgentTool(runtime, whoCalls, { canReadOn: true })])
    else if (name === 'listAgents') tools.push([name, listAgentsTool(runtime, whoCalls)])
    else if (name === 'messageAgent') tools.push([name, messageAgentTool(runtime, whoCalls)])
    else if (name !== READ_RESULT) {
      const found = findAiTool(name)
      if (found === undefined) missing.push(name)
      else tools.push([name, found.tool])
    }
  }
  if (missing.length > 0) {
    throw new UnresolvableAgentError(
      `Unknown tools: ${missing.join(', ')}. They are named by the bot and not registered in this worker; add them to the config module (OFFSHOOT_CONFIG).`,
    )
  }
  // Every job has it; its model is offered it once something was truncated (run-segment.ts).
  tools.push([READ_RESULT, readResultTool(runtime, whoCalls)])
  return Object.fromEntries(tools)
}
