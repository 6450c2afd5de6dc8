// Writes src/types.ts, the types of the API's messages, from its description.
import { readFileSync, writeFileSync } from 'node:fs'

const description = JSON.parse(readFileSync('../../../proto/ipwitness/v1/openapi.json', 'utf8'))
const messages = description.components.schemas

/** The TypeScript type of a schema. */
function type(schema) {
  if (schema.$ref) return schema.$ref.split('/').pop()
  switch (schema.type) {
    case 'array': return `${type(schema.items)}[]`
    case 'object': return schema.additionalProperties ? `Record<string, ${type(schema.additionalProperties)}>` : 'object'
    case 'integer': return 'number'
    default: return schema.type ?? 'unknown'
  }
}

/** The messages that these use, directly or not. */
function used(names, found = new Set()) {
  for (const name of names) {
    if (found.has(name)) continue
    found.add(name)
    used([...JSON.stringify(messages[name]).matchAll(/"#\/components\/schemas\/(\w+)"/g)].map((m) => m[1]), found)
  }
  return found
}

const answers = Object.keys(messages).filter((name) => /^(List|Watch|Explain).*Response$/.test(name))
let out = '// Made by types.mjs from the description of the API. Do not edit.\n'
for (const name of [...used(answers)].sort()) {
  const message = messages[name]
  if (message.enum) {
    out += `\nexport type ${name} = ${message.enum.map((v) => `'${v}'`).join(' | ')}\n`
    continue
  }
  out += `\nexport interface ${name} {\n`
  for (const [field, schema] of Object.entries(message.properties ?? {})) {
    out += `  ${field}${message.required?.includes(field) ? '' : '?'}: ${type(schema)}\n`
  }
  out += '}\n'
}
writeFileSync('src/types.ts', out)
