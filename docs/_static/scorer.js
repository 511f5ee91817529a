// Sphinx's scores, but notebooks, tables of modules and history come after other pages of the same score.
const AFTER = /^notebooks\/|^(changelog|decisions|tried)$|^reference\/generated\/(flax_layers|jax_gnn)(\.(training|datasets|sampling))?$/;
var Scorer = {
  score: ([page, title, anchor, description, score]) => score - (AFTER.test(page) && !anchor ? 2 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
