"""The words prompt tasks are made of, chosen to be single tokens (after a space) in common BPE vocabularies.

Which of them a given tokenizer keeps is found at run time (`tokens.single_words`); the others are listed in
`PromptSet.dropped`.  Objects follow "a", places follow "the"; no city is also in the list of names.
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES: tuple[str, ...] = _words(
    """
    James John Robert Michael William David Richard Joseph Thomas Charles Daniel Matthew Mark Donald Paul
    Andrew George Edward Jacob Stephen Scott Samuel Frank Alexander Jack Adam Henry Peter Carl Arthur Louis
    Luke Simon Martin Fred Tom Tim Bob Bill Jim Dan Sam Ben Max Alex Chris Matt Nick Tony Mary Elizabeth Sarah
    Emily Anna Maria Jean Alice Marie Ann Jane Steven Kevin Brian Jason Ryan Gary Eric Justin Patrick Aaron
    Nathan Keith Roger Joe Bruce Linda Susan Jessica Karen Lisa Laura Amy Emma Helen Rachel Kelly Julia Kate
    """
)

PLACES: tuple[str, ...] = _words(
    """
    store park school office house hospital library beach station garden restaurant museum theater church
    market hotel airport bank castle farm kitchen pool bar club stadium factory river lake forest mall shop
    studio university college village court temple bridge island
    """
)

OBJECTS: tuple[str, ...] = _words(
    """
    drink book ring ball letter gift key box card computer phone hat bag bottle ticket flower coin knife
    basket bone snack map watch pen photo picture camera toy cake shirt coat lamp bell guitar
    bike stone chair candle
    """
)

CITIES: tuple[str, ...] = _words(
    """
    London Paris Berlin Rome Madrid Moscow Tokyo Beijing Delhi Mumbai Chicago Boston Dallas Houston Denver
    Seattle Atlanta Miami Detroit Philadelphia Portland Toronto Montreal Vancouver Sydney Melbourne Dublin
    Edinburgh Glasgow Manchester Liverpool Birmingham Vienna Prague Warsaw Budapest Athens Istanbul Cairo
    Jerusalem Baghdad Singapore Shanghai Seoul Amsterdam Brussels Munich Hamburg Frankfurt Milan Venice
    Barcelona Stockholm Oslo Copenhagen Geneva Zurich Cambridge Oxford Bristol Cleveland Pittsburgh Baltimore
    """
)

EVENTS: tuple[str, ...] = _words(
    """
    war battle conflict siege campaign struggle peace truce reign rule empire dynasty government administration
    presidency reform movement revolution crisis strike protest debate dispute trial investigation inquiry
    project program plan study survey research experiment construction work operation mission expedition journey
    voyage tour trip pilgrimage festival exhibition season series show performance concert training course
    education marriage friendship partnership alliance agreement treaty contract deal loan lease sale trade
    boycott blockade occupation raid invasion flood drought famine plague epidemic illness treatment
    """
)
