// Errors of tools are told to models and shown to users in the words of whoever threw them. Those of drivers and HTTP
// clients like to repeat the address or the header with which they failed.

const SECRETS: readonly [pattern: RegExp, shown: string][] = [
  // The login in an address; a password may hold an @ of its own. The bounds keep a long text from taking long.
  [/(\b[a-z][a-z0-9+.-]{0,20}:\/\/)[^\s/?#"']{0,500}@/gi, '$1[redacted]@'],
  [/\b(Bearer|Basic) +[\w.~+/=-]{8,}/gi, '$1 [redacted]'],
  // Keys that say what they are: OpenAI's and its relatives', Inngest's.
  [/\b(sk|signkey)-[\w-]{12,}/g, '$1-[redacted]'],
]

/** The text without logins in addresses, bearer tokens and keys. */
export function withoutSecrets(text: string): string {
  return SECRETS.reduce((shown, [pattern, instead]) => shown.replace(pattern, instead), text)
}
