import { type Logger, pino, stdSerializers } from 'pino'

export type { Logger }

/** JSON lines on stderr, so that stdout stays free for what a command answers. Secrets in known places are cut out. */
export function createLogger(options: { level: string; name: string }): Logger {
  return pino(
    {
      level: options.level,
      name: options.name,
      // An Error under `error` is written with its causes; pino by itself knows only `err`.
      serializers: { error: stdSerializers.errWithCause },
      redact: {
        paths: [
          'authorization',
          '*.authorization',
          'req.headers.authorization',
          'req.headers.cookie',
          'apiKey',
          '*.apiKey',
          'password',
          '*.password',
        ],
        censor: '[redacted]',
      },
    },
    pino.destination({ fd: 2, sync: true }),
  )
}
