import { readFileSync } from 'node:fs'
import { defineConfig } from 'vite'

/** The packages that become part of the page. Their licences are distributed with it. */
const parts = ['preact', '@preact/signals', '@preact/signals-core']

const licences = {
  name: 'licences',
  generateBundle() {
    const texts = parts.map((p) => {
      const version = JSON.parse(readFileSync(`node_modules/${p}/package.json`, 'utf8')).version
      return `======== ${p} ${version}: LICENSE\n\n${readFileSync(`node_modules/${p}/LICENSE`, 'utf8')}\n`
    })
    this.emitFile({ type: 'asset', fileName: 'licences.txt', source: texts.join('') })
  },
}

// Relative addresses, so that the page works behind a path prefix, and nothing inline, so that the
// Content-Security-Policy can forbid that.
export default defineConfig({
  base: './',
  plugins: [licences],
  esbuild: { jsx: 'automatic', jsxImportSource: 'preact' },
  build: {
    outDir: '../dist',
    emptyOutDir: true,
    target: 'es2022',
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
})
