// A config module that says what models cost. docs/guide/usage.md explains it.
import { defineConfig } from '@offshoot/shared/extensions'

export default defineConfig({
  prices: {
    'openai:gpt-5': { inputUsdPerMillion: 1.25, cachedInputUsdPerMillion: 0.125, outputUsdPerMillion: 10 },
  },
})
