// Runs the cases of a copy of http-tests/cache-tests against a cache, and prints which pass.
//
//   node run.mjs COPY BASE private|shared WAY [--json] [ID...]
//
// A private cache gets the cases for browsers, a shared cache those for proxies and CDNs. The suite's own command always
// selects the latter. Exits with 1 if a required case fails that expected-failures.tsv does not name, and with 2 if a
// case that is named, or a kind of case, was not run.
import { readFileSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { resolve } from 'node:path'

const [copy, base, mode, way, ...rest] = process.argv.slice(2)
const json = rest.includes('--json')
const ids = new Set(rest.filter(argument => argument !== '--json'))
const load = path => import(pathToFileURL(resolve(copy, path)))
const fail = message => {
  console.error(`cache-tests: ${message}`)
  process.exit(2)
}
const { runTests, getResults } = await load('test-engine/client/runner.mjs')
const { determineTestResult, resultTypes } = await load('test-engine/lib/results.mjs')
const suites = (await load('tests/index.mjs')).default

const known = new Set(suites.flatMap(suite => suite.tests).map(test => test.id))
const unknown = [...ids].filter(id => !known.has(id))
if (unknown.length > 0) fail(`the suite has no case ${unknown.join(', ')}`)
// With other arguments it would run no case, or the cases of the other mode.
if (runTests.length !== 3) fail('runTests of this copy has other arguments; use the present version of the suite')
const selected = ids.size === 0
  ? suites
  : suites.map(suite => ({
    ...suite,
    tests: suite.tests.filter(test => ids.has(test.id)).map(test => ({ ...test, dump: true }))
  }))
// The suite reports what it cannot parse on the console; only the results belong on standard output.
const print = console.log
if (ids.size === 0) console.log = () => {}
await runTests(selected, mode === 'private', base)
const results = getResults()
const skipped = [...ids].filter(id => !(id in results))
if (skipped.length > 0) fail(`the suite does not run these cases in ${mode} mode: ${skipped.join(', ')}`)

const expected = new Map(readFileSync(new URL('expected-failures.tsv', import.meta.url), 'utf8')
  .trim().split('\n').slice(1).map(line => line.split('\t'))
  .filter(([modes, ways]) => [mode, 'both'].includes(modes) && [way, 'all'].includes(ways))
  .map(([, , id, reason]) => [id, reason]))
const names = new Map(Object.entries(resultTypes).map(([name, type]) => [type, name]))
const rows = selected.flatMap(suite => suite.tests)
  .filter(test => test.id in results)
  .map(test => ({
    id: test.id,
    kind: test.kind ?? 'required',
    // Each case counts by itself: whether the cases that it depends on pass makes no difference.
    result: names.get(determineTestResult(suites, test.id, results, false)),
    message: results[test.id] === true ? '' : results[test.id].join(': ')
  }))
const kinds = ['required', 'optimal', 'check']
for (const kind of ids.size === 0 ? kinds : []) {
  if (!rows.some(row => row.kind === kind)) fail(`no ${kind} case ran`)
}

const passes = row => row.result === 'pass' || row.result === 'yes'
if (json) {
  print(JSON.stringify(rows, null, 1))
} else {
  print('| Kind | Cases | Pass |\n| --- | --- | --- |')
  for (const kind of kinds) {
    const ofKind = rows.filter(row => row.kind === kind)
    print(`| ${kind} | ${ofKind.length} | ${ofKind.filter(passes).length} |`)
  }
  print('')
  for (const row of rows.filter(row => !passes(row))) {
    const reason = expected.has(row.id) ? ` Expected: ${expected.get(row.id)}.` : ''
    print(`${row.kind} ${row.id}: ${row.result}. ${row.message}.${reason}`)
  }
}
process.exit(rows.some(row => row.kind === 'required' && !passes(row) && !expected.has(row.id)) ? 1 : 0)
