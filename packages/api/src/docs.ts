// The API described: /openapi.json for programs, /docs for people. Swagger UI comes from this server, nothing from outside.
import { createRequire } from 'node:module'
import path from 'node:path'
import { Router } from 'express'
import { openApiDocument } from './openapi.ts'
import { pagePolicy } from './page-policy.ts'

const swaggerFolder = path.dirname(createRequire(import.meta.url).resolve('swagger-ui-dist/package.json'))
const SWAGGER_FILES = ['swagger-ui.css', 'swagger-ui-bundle.js', 'favicon-32x32.png']

const PAGE = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Offshoot API</title>
<link rel="icon" type="image/png" href="/docs/favicon-32x32.png">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="docs"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
`
const START = `SwaggerUIBundle({ url: '/openapi.json', dom_id: '#docs', deepLinking: true, validatorUrl: null })\n`

export function docsRoutes(): Router {
  const router = Router()
  const document = JSON.stringify(openApiDocument())

  router.get('/openapi.json', (_request, response) => {
    response.type('application/json').send(document)
  })

  router.use('/docs', docsPolicy)
  router.get('/docs', (_request, response) => {
    response.type('html').send(PAGE)
  })
  router.get('/docs/start.js', (_request, response) => {
    response.type('text/javascript').send(START)
  })
  for (const file of SWAGGER_FILES) {
    router.get(`/docs/${file}`, (_request, response) => {
      response.sendFile(file, { root: swaggerFolder, maxAge: '1h' })
    })
  }
  return router
}

/** Swagger UI sets style attributes and draws its icons from data addresses. */
const docsPolicy = pagePolicy()
