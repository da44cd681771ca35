// A search of the text of all pages. The index is loaded when the field gets the focus.
'use strict';
(() => {
  const folder = new URL('.', document.currentScript.src);
  const bar = document.createElement('form');
  bar.id = 'site-search';
  bar.setAttribute('role', 'search');
  bar.innerHTML = '<a>LMDBURLCache</a><input type="search" placeholder="Search the text" autocomplete="off"' +
    ' aria-label="Search the text of all pages"><ol hidden></ol>';
  const [home, input, list] = bar.children;
  home.href = new URL('../documentation/', folder);
  let rows;

  // Words that begin like the searched ones; every one must be in a section, its heading or its title.
  const patterns = (query) => query.toLowerCase().split(/\s+/).filter(Boolean).map((word) =>
    new RegExp((/^\w/.test(word) ? '\\b' : '') + word.replace(/[^\w\s]/g, '\\$&'), 'gi'));
  const count = (text, word) => (text.match(word) || []).length;

  function find(words) {
    const found = [];
    for (const [url, title, heading, text, isArticle] of rows) {
      let score = isArticle ? 3 : 0;
      const holds = words.every((word) => {
        const points = 8 * count(title, word) + 5 * count(heading, word) + Math.min(count(text, word), 4);
        score += points;
        return points > 0;
      });
      if (holds) found.push({url, title, heading, text, score});
    }
    return found.sort((one, other) => other.score - one.score).slice(0, 30);
  }

  // The text around the first word, with all words marked.
  function excerpt(text, words) {
    const first = Math.min(...words.map((word) => text.search(word)).filter((at) => at >= 0), text.length);
    const from = first === text.length ? 0 : Math.max(0, text.lastIndexOf(' ', first - 40));
    const element = document.createElement('span');
    const shown = (from > 0 ? '…' : '') + text.slice(from, from + 160);
    let end = 0;
    for (const match of shown.matchAll(new RegExp(words.map((word) => word.source).join('|'), 'gi'))) {
      const mark = document.createElement('mark');
      mark.textContent = match[0];
      element.append(shown.slice(end, match.index), mark);
      end = match.index + match[0].length;
    }
    element.append(shown.slice(end));
    return element;
  }

  async function update() {
    rows ??= await (await fetch(new URL('index.json', folder))).json();
    const words = patterns(input.value);
    list.hidden = words.length === 0;
    if (list.hidden) return;
    const items = find(words).map(({url, title, heading, text}) => {
      const item = document.createElement('li');
      const link = document.createElement('a');
      link.href = new URL('../' + url, folder);
      link.textContent = heading && heading !== 'Overview' ? title + ' › ' + heading : title;
      item.append(link, excerpt(text, words));
      return item;
    });
    list.replaceChildren(...(items.length ? items : ['No page has these words.']));
  }

  input.addEventListener('input', update);
  input.addEventListener('focus', update);
  bar.addEventListener('submit', (event) => {
    event.preventDefault();
    list.querySelector('a')?.click();
  });
  // A click on a section of the same page loads no other page.
  list.addEventListener('click', (event) => { if (event.target.closest('a')) list.hidden = true; });
  document.addEventListener('click', (event) => { if (!bar.contains(event.target)) list.hidden = true; });
  document.addEventListener('keydown', (event) => { if (event.key === 'Escape') list.hidden = true; });
  document.body.prepend(bar);
})();
