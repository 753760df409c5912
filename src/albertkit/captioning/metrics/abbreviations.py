"""Abbreviations that keep their full stop, found by asking Stanford's program for every word of up to four letters and 90,000
longer ones.
"""

# Whatever their case is: `Mr.`, `dept.`
ANY_CASE = """
    adj adm adv al ala alex apr ariz assn assoc asst atty aug ave bancorp bhd bldg blvd brig bros calif capt cf cie cmdr co col
    colo conn corp cos cpl ct dak dec dept det dr drs elec ens esq est etc ext feb fla fri ft ga gen gov govs hon inc ind insp
    intl invt jan jos jr jul jun kan kans ky lieut lt ltd maj mar md messrs mfg mich minn mlle mme mo mon mont mr mrs ms msgr mt
    mtg natl neb nev nov oct okla penn pfc ph plc ppte ppty pres prof profs pte ptes pty ptys pvt rd rep reps rev rt sen sens
    sep sept seq sfc sgt spc sq sr st ste supt sys tel tenn thu thurs tue tues univ va vs vt wed wis wisc wm wyo
""".split()

# Words as well, so only with a capital: `Miss.` is a state, `miss.` ends a sentence.
CAPITALISED = "ark az del ill la mass miss ore pa tex wash".split()

# Only before a number: `no. 5`.
BEFORE_NUMBERS = "art ca fig figs no nos op pp prop".split()

# After a single letter, these begin a new sentence and the full stop is not the letter's: `plan b. The dog`.
SENTENCE_STARTS = """
    A About According Additionally After An As At But Earlier He Her Here However If In It Last Many More Now Once One Other
    Our She Since So Some Such That The Their Then There These They This We What When While Yet You
""".split()
