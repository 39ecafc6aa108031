// How the sub-agent tools read what a model wrote: empty optional fields count as absent, the rest is the contract's
// schema, which the model sees as JSON Schema.
import { jsonSchema, type Schema } from 'ai'
import { z } from 'zod'
import { withoutEmptyOptions } from '../contracts/without-empty-options.ts'

/** Lists and objects within each other, as over HTTP. */
const MAX_DEPTH = 100

/** Tools are made anew for each job, their schemas once. */
const made = new WeakMap<z.ZodType, Schema>()

/**
 * An AI SDK schema for a tool's input. `required` fields are kept even when they are empty: the same ones for one schema.
 */
export function modelInput<T>(schema: z.ZodType<T>, required: readonly string[]): Schema<T> {
  const known = made.get(schema)
  // What was made of a schema of this type.
  if (known !== undefined) return known as Schema<T>
  const input = makeModelInput(schema, required)
  made.set(schema, input)
  return input
}

function makeModelInput<T>(schema: z.ZodType<T>, required: readonly string[]): Schema<T> {
  const json = z.toJSONSchema(schema, {
    io: 'input',
    target: 'draft-7',
    // Providers refuse or warn about this keyword; every key of ours is a string anyway.
    override: ({ jsonSchema: described }) => void delete described.propertyNames,
  })
  // zod's JSON Schema type and the AI SDK's describe the same documents.
  return jsonSchema<T>(json as Parameters<typeof jsonSchema>[0], {
    validate: (value) => {
      if (isDeeperThan(value, MAX_DEPTH))
        return { success: false, error: new Error(`Lists and objects may be nested ${MAX_DEPTH} deep.`) }
      const parsed = schema.safeParse(withoutEmptyOptions(value, required))
      return parsed.success
        ? { success: true, value: parsed.data }
        : { success: false, error: new Error(z.prettifyError(parsed.error)) }
    },
  })
}

/** Goes down no further than the limit, so that no nesting is too deep to be looked at. */
function isDeeperThan(value: unknown, depth: number): boolean {
  if (value === null || typeof value !== 'object') return false
  return depth === 0 || Object.values(value).some((field) => isDeeperThan(field, depth - 1))
}
