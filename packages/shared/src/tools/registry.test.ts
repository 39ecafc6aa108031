import { jsonSchema, tool } from 'ai'
import { expect, test } from 'vitest'
import { type AiTool, findAiTool, getAiToolNames, getAiTools, getSelectedAiTools, registerAiTool } from './registry.ts'

const aiTool = (id: string): AiTool => ({
  id,
  group: 'test',
  userSelect: true,
  tool: tool({ description: id, inputSchema: jsonSchema<object>({ type: 'object' }), execute: () => id }),
})
const weather = aiTool('weather')
const clock = aiTool('clock')
registerAiTool(weather)
registerAiTool(clock)

test('registered tools are found by name, in the order of their registration', () => {
  expect(getAiTools()).toEqual([weather, clock])
  expect(getAiToolNames()).toEqual(['weather', 'clock'])
  expect(findAiTool('clock')).toBe(clock)
})

test('a selection has the asked-for tools in the asked-for order, and leaves out unknown names', () => {
  const selected = getSelectedAiTools(['clock', 'nobody', 'weather'])
  expect(Object.entries(selected)).toEqual([
    ['clock', clock.tool],
    ['weather', weather.tool],
  ])
})

test('the same tool may be registered twice, another one of that name may not', () => {
  registerAiTool(weather)
  expect(getAiToolNames()).toEqual(['weather', 'clock'])
  expect(() => registerAiTool(aiTool('weather'))).toThrow(
    /"weather" is registered already \(group "test"\).*choose another/,
  )
  expect(findAiTool('weather')).toBe(weather)
})

test('SEC-9: names that every object has are unknown tools', () => {
  for (const name of ['constructor', '__proto__', 'toString', 'hasOwnProperty']) {
    expect(findAiTool(name)).toBeUndefined()
    expect(Object.keys(getSelectedAiTools([name]))).toEqual([])
  }
})
